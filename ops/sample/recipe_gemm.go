package sample

// gemmRecipes is for products.
var gemmRecipes = recipeTable{}

// gemmTolerances is for those of them whose results are not exact.
var gemmTolerances = toleranceTable{}
