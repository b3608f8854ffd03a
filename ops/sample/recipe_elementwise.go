package sample

// elementwiseRecipes is for norms, activations and other work on single elements.
var elementwiseRecipes = recipeTable{}

// elementwiseTolerances is for those of them whose results are not exact.
var elementwiseTolerances = toleranceTable{}
