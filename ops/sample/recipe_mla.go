package sample

// mlaRecipes is for latent attention, its cache, and the named forms of attention.
var mlaRecipes = recipeTable{}

// mlaTolerances is for those of them whose results are not exact.
var mlaTolerances = toleranceTable{}
