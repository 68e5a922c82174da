# %% [markdown]
# # own_method

# %%
print(1)
