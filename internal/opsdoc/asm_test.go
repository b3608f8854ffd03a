//go:build !noasm && !purego

package main

const noasm = false
