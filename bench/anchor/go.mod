module github.com/opmux/opmux/bench/anchor

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/opmux/opmux v0.0.0
	github.com/stretchr/testify v1.11.1
	golang.org/x/sys v0.50.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/opmux/opmux => ../..
