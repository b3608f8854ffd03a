module github.com/opmux/opmux/bench/anchor

go 1.26.0

require github.com/opmux/opmux v0.0.0

require golang.org/x/sys v0.50.0 // indirect

replace github.com/opmux/opmux => ../..
