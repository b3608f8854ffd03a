# Every target is a plain command that can be run by hand.
.PHONY: all build test ci generate bench anchor model

all: build

build: ## the command, static, without cgo and symbol tables
	CGO_ENABLED=0 go build -tags nethttpomithttp2 -trimpath -ldflags "-s -w" -o opmux ./cmd/opmux

test: ## what README's test command runs
	go test ./...

ci: ## everything that lands has to pass
	.ci/run

generate: ## assembly, C header and tables from their generators
	go generate ./...

bench: ## benchmarks, readable by benchstat
	go test -run '^$$' -bench . ./registry ./cpu

anchor: ## side by side with llama.cpp, OpenBLAS and oneDNN; needs npm
	go -C bench/anchor run .
	go -C bench/anchor run . ops

model: ## train the embedded model again; needs python3
	cmd/opmux/model/_train/train.sh
