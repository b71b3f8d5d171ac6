// Command faults checks that the tests catch faults: it applies one fault after the other to a copy of the tree and runs the tests that must fail.
//
//	go run ./test/faults [-run REGEXP] [-list]
//
// faults.go contains the list. The exit status is 1 if no test catches a fault, or if the tree no longer contains the text of a fault.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	pattern := flag.String("run", "", "regular expression of names of faults; all when empty")
	list := flag.Bool("list", false, "print the faults and exit")
	flag.Parse()
	chosen, err := choose(*pattern)
	if err == nil && *list {
		for _, f := range chosen {
			fmt.Printf("%-34s %-9s %s\n", f.name, f.tier, f.about)
		}
		return
	}
	if err == nil {
		err = run(ctx, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func choose(pattern string) ([]fault, error) {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !matches.MatchString(f.name) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %q names no fault; -list prints them", pattern)
	}
	return chosen, nil
}

// run tests faults in a work tree of the committed revision.
func run(ctx context.Context, chosen []fault) (err error) {
	dir, err := os.MkdirTemp("", "waggle-faults-")
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if _, err := call(ctx, ".", "git", "worktree", "add", "--quiet", "--detach", tree, "HEAD"); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		_, err2 := call(context.WithoutCancel(ctx), ".", "git", "worktree", "remove", "--force", tree)
		err = errors.Join(err, err2, os.RemoveAll(dir))
	}()
	var survived []string
	for _, f := range chosen {
		found, err := f.try(ctx, tree)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil:
			fmt.Printf("ERROR     %-34s %v\n", f.name, err)
		case len(found) == 0:
			fmt.Printf("SURVIVED  %-34s %s\n", f.name, strings.Join(f.packages, " "))
		default:
			fmt.Printf("caught    %-34s %-9s %s\n", f.name, f.tier, strings.Join(found, " "))
			continue
		}
		survived = append(survived, f.name)
	}
	if len(survived) > 0 {
		return fmt.Errorf("%d of %d faults were not caught: %s", len(survived), len(chosen), strings.Join(survived, ", "))
	}
	fmt.Printf("all %d faults were caught\n", len(chosen))
	return nil
}

// try applies the fault to a clean tree, returns the failed tests, and cleans the tree.
func (f fault) try(ctx context.Context, tree string) (found []string, err error) {
	defer func() {
		_, err2 := call(context.WithoutCancel(ctx), tree, "git", "checkout", "--quiet", "--", ".")
		err = errors.Join(err, err2)
	}()
	for _, c := range f.changes {
		if err := c.apply(tree); err != nil {
			return nil, err
		}
	}
	if f.generate != "" {
		if _, err := call(ctx, tree, "go", "generate", f.generate); err != nil {
			return nil, err
		}
	}
	if f.tier == "kube" {
		if _, err := call(ctx, tree, "make", "image", "kube-binaries"); err != nil {
			return nil, err
		}
	}
	dir, args := f.command()
	out, err := call(ctx, filepath.Join(tree, dir), "go", args...)
	if err == nil {
		return nil, nil
	}
	if found = failed(out); len(found) == 0 {
		return nil, fmt.Errorf("no test failed, but: %w", err)
	}
	return found, nil
}

// apply replaces a text that the file has exactly once.
func (c change) apply(tree string) error {
	path := filepath.Join(tree, filepath.FromSlash(c.file))
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := bytes.Count(text, []byte(c.old)); n != 1 {
		return fmt.Errorf("%s has %d times %q, want once", c.file, n, c.old)
	}
	return os.WriteFile(path, bytes.Replace(text, []byte(c.old), []byte(c.new), 1), 0o644)
}

// failedLine matches the line that test/kernels prints for a failed test.
var failedLine = regexp.MustCompile(`^--- FAIL: (\w+) `)

// failed returns the names of failed top-level tests from the output of `go test -json` or of test/kernels.
func failed(out []byte) (names []string) {
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Test string }
		if found := failedLine.FindSubmatch(lines.Bytes()); found != nil {
			names = append(names, string(found[1]))
		} else if json.Unmarshal(lines.Bytes(), &e) == nil && e.Action == "fail" && e.Test != "" && !strings.Contains(e.Test, "/") {
			names = append(names, e.Test)
		}
	}
	return names
}

// call runs a program and returns its standard output. The go command runs without cgo. An error contains the end of standard error and standard output.
func call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, os.Environ()
	if name == "go" {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		text := bytes.TrimSpace(append(stderr.Bytes(), out[max(0, len(out)-500):]...))
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args[:min(2, len(args))], " "), err, text[max(0, len(text)-1000):])
	}
	return out, err
}
