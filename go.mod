module github.com/opmux/opmux

go 1.26.0

require (
	github.com/stretchr/testify v1.11.1
	golang.org/x/sys v0.50.0
)
