package sample

// moeRecipes is for mixtures of experts.
var moeRecipes = recipeTable{}

// moeTolerances is for those of them whose results are not exact.
var moeTolerances = toleranceTable{}
