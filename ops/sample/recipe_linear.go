package sample

// linearRecipes is for gated delta nets and their convolutions.
var linearRecipes = recipeTable{}

// linearTolerances is for those of them whose results are not exact.
var linearTolerances = toleranceTable{}
