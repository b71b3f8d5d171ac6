package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

const module = "github.com/waggle-net/waggle"

// Programs of a machine in addition to the test binaries.
const (
	guestPackage  = module + "/test/kernels/guest"
	runnerPackage = "cmd/test2json"
)

// All programs are static. The linker's flags are part of a program's identity, see [identities].
const linkFlags = "-s -w"

var goEnv = []string{"CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux"}

// goCommand runs the go command with the environment and the flags of all programs of a machine.
func goCommand(ctx context.Context, verb []string, args ...string) (string, error) {
	words := append(slices.Clone(goEnv), "go")
	words = append(append(words, verb...), "-trimpath", "-buildvcs=false")
	return command(ctx, "", "env", append(words, args...)...)
}

// listed is a package in the output of `go list -export`.
type listed struct {
	ImportPath string
	Name       string
	BuildID    string // hash of the compiler's input, a slash, hash of its output
	Deps       []string
}

// identities returns a hash of each program by its import path; the import path of a package's tests ends in ".test". Two programs with one hash are
// identical: the linker gets the same compiled packages and the same flags, and -trimpath removes the paths of this machine. identities links no programs,
// because that would take most of the time of a run with nothing to do.
func identities(ctx context.Context, packages []string) (map[string]string, error) {
	out, err := goCommand(ctx, []string{"list", "-deps", "-test", "-export", "-json=ImportPath,Name,BuildID,Deps"}, packages...)
	if err != nil {
		return nil, err
	}
	version, err := command(ctx, "", "go", "env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	return identitiesOf(strings.NewReader(out), strings.TrimSpace(version), linkFlags)
}

func identitiesOf(list io.Reader, version, flags string) (map[string]string, error) {
	all := map[string]listed{}
	for decoder := json.NewDecoder(list); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		all[p.ImportPath] = p
	}
	ids := map[string]string{}
	for path, p := range all {
		if p.Name != "main" { // not a program
			continue
		}
		h := sha256.New()
		fmt.Fprintf(h, "%s %s\n", version, flags)
		for _, name := range slices.Sorted(slices.Values(append(slices.Clone(p.Deps), path))) {
			_, content, found := strings.Cut(all[name].BuildID, "/")
			if !found && name != "unsafe" { // unsafe is not compiled
				return nil, fmt.Errorf("find the hash of package %s, which %s needs: its build id is %q", name, path, all[name].BuildID)
			}
			fmt.Fprintf(h, "%s %s\n", name, content)
		}
		ids[path] = hex.EncodeToString(h.Sum(nil))
	}
	return ids, nil
}

// build links programs to files by import path. It does not change files that are up to date.
func build(ctx context.Context, files map[string]string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for path, file := range files {
		group.Go(func() error {
			verb := []string{"build"}
			pkg, isTest := strings.CutSuffix(path, ".test")
			if isTest {
				verb = []string{"test", "-c", "-vet=off"}
			}
			_, err := goCommand(ctx, verb, "-ldflags="+linkFlags, "-o", file, pkg)
			return err
		})
	}
	return group.Wait()
}

// fileOf returns the file of a program in the folder of programs.
func fileOf(dir, path string) string {
	return filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, module+"/"), "/", "-"))
}
