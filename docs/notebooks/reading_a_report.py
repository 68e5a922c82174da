# %% [markdown]
# # reading_a_report

# %%
print(1)
