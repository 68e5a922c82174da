# %% [markdown]
# # own_images

# %%
print(1)
