package limits

import (
	"io/fs"
	"os"
)

func root() fs.FS { return os.DirFS("/") }
