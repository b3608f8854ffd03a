package sample

// fusedRecipes is for fused chains.
var fusedRecipes = recipeTable{}

// fusedTolerances is for those of them whose results are not exact.
var fusedTolerances = toleranceTable{}
