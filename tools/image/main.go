// Command image writes a container image as a tar, without a container engine, a registry or a base image.
//
//	image -o waggle.tar -name waggle.local/waggle:v1 -entrypoint /usr/bin/waggle-agent bin/waggle-agent=/usr/bin/waggle-agent
//
// Each argument puts a file of this machine at a path of the image. The same content gives the same bytes: times, owners
// and modes are fixed. `ctr images import` and `docker load` read the format.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// list is a flag that may be given several times.
type list []string

func (l *list) String() string         { return strings.Join(*l, " ") }
func (l *list) Set(value string) error { *l = append(*l, value); return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	var names, links, entrypoint list
	output := flag.String("o", "", "the file to write")
	flag.Var(&names, "name", "`name:tag` of the image; may be repeated")
	flag.Var(&links, "link", "symbolic link `target=path`; may be repeated")
	flag.Var(&entrypoint, "entrypoint", "program and each of its arguments; may be repeated")
	flag.Parse()
	if *output == "" || len(names) == 0 || flag.NArg() == 0 {
		return fmt.Errorf("-o, -name and at least one FILE=PATH are required")
	}
	image := Image{Names: names, Entrypoint: entrypoint}
	for _, arg := range flag.Args() {
		from, to, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(to, "/") {
			return fmt.Errorf("file %q: want FILE=/PATH", arg)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		image.Files = append(image.Files, File{Path: to, Content: content})
	}
	for _, link := range links {
		target, path, ok := strings.Cut(link, "=")
		if !ok || !strings.HasPrefix(path, "/") {
			return fmt.Errorf("link %q: want TARGET=/PATH", link)
		}
		image.Files = append(image.Files, File{Path: path, Link: target})
	}
	archive, err := image.Archive()
	if err != nil {
		return err
	}
	return replace(*output, archive)
}

// replace writes a file so that readers see the old content or the new.
func replace(path string, content []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
