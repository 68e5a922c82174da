# %% [markdown]
# # tour

# %%
print(1)
