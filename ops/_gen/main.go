// Command _gen writes csrc/include/opmux.h from the argument records of package ops. Run it with "go generate ./ops".
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opmux/opmux/ops/internal/cheader"
)

func main() {
	text, err := cheader.Text()
	if err == nil {
		err = os.WriteFile(filepath.Join("..", "csrc", "include", "opmux.h"), text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ops/_gen:", err)
		os.Exit(1)
	}
}
