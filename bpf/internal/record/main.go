// Command record notes with which versions of the toolchain the programs were built. `go generate` runs it last, in the
// folder of the objects.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/waggle-net/waggle/bpf/internal/toolchain"
)

func main() {
	if err := record(); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record() error {
	installed, err := toolchain.Installed()
	if err != nil {
		return err
	}
	if missing := installed.Missing(); len(missing) > 0 {
		return fmt.Errorf("record the toolchain: its Debian packages are not installed: %s", strings.Join(missing, " "))
	}
	return toolchain.Write(toolchain.File, installed)
}
