// Command reference writes the pages of Documentation/ that are generated (flags, tables, metrics, permissions) and the list
// of flags that "waggle install" checks options with. They come from the agent itself, built and not started. With -write
// it writes them; otherwise it says which are out of date.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	write := flag.Bool("write", false, "write the pages instead of comparing them")
	flag.Parse()
	if err := run(".", *write); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// run works on the tree below root.
func run(root string, write bool) error {
	pages, err := generate(root)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		file := filepath.Join(root, name)
		if write {
			if err := os.WriteFile(file, []byte(pages[name]), 0o644); err != nil {
				return err
			}
			continue
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != pages[name] {
			return fmt.Errorf("%s is out of date: run make docs", file)
		}
	}
	return nil
}
