package sample

// quantRecipes is for quantization, selection and movement of rows, speculative decoding.
var quantRecipes = recipeTable{}

// quantTolerances is for those of them whose results are not exact.
var quantTolerances = toleranceTable{}
