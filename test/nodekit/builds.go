package nodekit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Build says how an agent differs from the one that is released.
type Build struct {
	// Generation of its datapath; 0 is that of the sources.
	Generation int
	// Replace puts other files in place of sources and embedded objects: by absolute path, the path of the other file.
	Replace map[string]string
	// Name tells builds that replace files apart, in this run and in later ones.
	Name string
	// Tags are build tags, separated by commas: "freeze" lets tests hold up loops, and "shortlimits" makes the limits of liveness a tenth
	// (package heartbeat).
	Tags string
}

// Builds makes agents of other versions, each once.
type Builds struct {
	dir string

	mu   sync.Mutex        // guards made, and is held while one is built: two at once would only compete
	made map[string]string // path by what was asked for
}

// NewBuilds keeps what it builds in dir.
func NewBuilds(dir string) *Builds { return &Builds{dir: dir, made: make(map[string]string)} }

// BuildPrograms puts waggle-agent, waggle-cni and waggle into dir. The flags are those of the Makefile, whose compiled packages are then used again.
func BuildPrograms(dir string) error {
	for _, name := range []string{"waggle-agent", "waggle-cni", "waggle"} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, name), "github.com/waggle-net/waggle/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// Agent returns the path of an agent that is built so.
func (b *Builds) Agent(build Build) (string, error) {
	key, err := json.Marshal(build)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if path, found := b.made[string(key)]; found {
		return path, nil
	}
	path := filepath.Join(b.dir, fmt.Sprintf("waggle-agent-%d", len(b.made)+1))
	flags := "-ldflags=-s -w"
	if build.Generation != 0 {
		flags += fmt.Sprintf(" -X github.com/waggle-net/waggle/pkg/version.generation=%d", build.Generation)
	}
	args := []string{"-trimpath", "-buildvcs=false", flags}
	if build.Tags != "" {
		args = append(args, "-tags="+build.Tags)
	}
	if len(build.Replace) > 0 {
		overlay, err := json.Marshal(map[string]any{"Replace": build.Replace})
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(path+".overlay", overlay, 0o600); err != nil {
			return "", err
		}
		args = append(args, "-overlay="+path+".overlay")
	}
	place := fmt.Sprintf("waggle-agent-%d-%s-%s", build.Generation, build.Tags, strings.ReplaceAll(build.Name, "/", "-"))
	if err := linked(path, place, append(args, "github.com/waggle-net/waggle/cmd/waggle-agent")); err != nil {
		return "", fmt.Errorf("build agent %s: %w", key, err)
	}
	b.made[string(key)] = path
	return path, nil
}

// linked puts a program to path. It is kept at a place in the cache that clones share, and linked again only when it is not current there.
func linked(path, place string, args []string) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	kept := filepath.Join(cache, "programs", place)
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(kept+".lock", os.O_CREATE|os.O_RDWR, 0o644) // other runs build the same program
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("go", append([]string{"build", "-o", kept}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	program, err := os.ReadFile(kept)
	if err != nil {
		return err
	}
	return os.WriteFile(path, program, 0o755)
}

// UseAgent makes a program the node's agent from its next start on; "" is the one in BinDir.
func (n *Node) UseAgent(path string) { n.agentPath = path }

// UpgradeAgent stops the agent as a DaemonSet's update does, starts another build in its place and waits until that is ready.
func (n *Node) UpgradeAgent(ctx context.Context, path string) error {
	n.UseAgent(path)
	if err := errors.Join(n.StopAgent(ctx), n.StartAgent()); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// Datapath compiles the datapath from changed sources, and returns what an agent with it has to replace. edit gets the
// name and the text of each source, header and hand-written Go file in bpf/ and returns what it shall be.
func (b *Builds) Datapath(edit func(name, text string) string) (map[string]string, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "datapath-")
	if err != nil {
		return nil, err
	}
	// A copy of the folder in a module of the same name: the generator is a tool of the module.
	if err := os.CopyFS(filepath.Join(dir, "bpf"), os.DirFS(filepath.Join(root, "bpf"))); err != nil {
		return nil, err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	changed, err := editFiles(filepath.Join(dir, "bpf"), edit)
	if err != nil {
		return nil, err
	}
	generated, err := compiled(dir)
	if err != nil {
		return nil, fmt.Errorf("compile the datapath: %w", err)
	}
	replace := make(map[string]string)
	for _, path := range append(generated, changed...) {
		replace[filepath.Join(root, "bpf", filepath.Base(path))] = path
	}
	return replace, nil
}

// objects are the files that the generator makes in bpf/.
const objects = "*_bpfel.*"

// compiled compiles the datapath in the copy of a module, and returns the objects. They follow from the sources, the module's tools and
// the Debian packages of the compiler; while none of these changes they come from the cache that clones share, unless WAGGLE_ALL is set.
func compiled(module string) ([]string, error) {
	key, err := hashDatapath(module)
	if err != nil {
		return nil, err
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(cache, "datapaths", key)
	if found, err := keptObjects(kept); err != nil || len(found) > 0 {
		return found, err
	}
	generate := exec.Command("go", "generate", "./bpf")
	generate.Dir = module
	if out, err := generate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(module, "bpf", objects))
	if err != nil || len(made) == 0 {
		return nil, fmt.Errorf("the generator made no file %s (%w)", objects, err)
	}
	return made, keep(kept, made)
}

// keptObjects returns the objects in a folder of the cache; none when WAGGLE_ALL is set, which ignores cached results.
func keptObjects(dir string) ([]string, error) {
	if os.Getenv("WAGGLE_ALL") != "" {
		return nil, nil
	}
	return filepath.Glob(filepath.Join(dir, objects))
}

// hashDatapath is the SHA-256 of all that the objects of bpf/ follow from.
func hashDatapath(module string) (string, error) {
	sum := sha256.New()
	versions, err := exec.Command("dpkg-query", "-W", "clang-19", "llvm-19", "libbpf-dev", "linux-libc-dev").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the versions of the compiler's packages: %w", err)
	}
	sum.Write(versions)
	for _, pattern := range []string{"go.sum", "bpf/*.c", "bpf/*.h", "bpf/gen.go", "bpf/internal/*/*.go"} {
		paths, err := filepath.Glob(filepath.Join(module, filepath.FromSlash(pattern)))
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(sum, strings.TrimPrefix(path, module), len(text))
			sum.Write(text)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// cacheDir is the folder with what follows from content alone: $WAGGLE_CACHE, or waggle in the user's cache folder.
func cacheDir() (string, error) {
	if dir := os.Getenv("WAGGLE_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "waggle"), err
}

// keep copies files to a folder that appears with all of them or not at all.
func keep(dir string, files []string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	partial, err := os.MkdirTemp(filepath.Dir(dir), "partial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(partial, filepath.Base(path)), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Rename(partial, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// editFiles rewrites the files of a folder and lists the Go files that became different.
func editFiles(dir string, edit func(name, text string) string) (changed []string, err error) {
	for _, pattern := range []string{"*.c", "*.h", "layouts.go"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			edited := edit(filepath.Base(path), string(text))
			if edited == string(text) {
				continue
			}
			if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
				return nil, err
			}
			if filepath.Ext(path) == ".go" {
				changed = append(changed, path)
			}
		}
	}
	return changed, nil
}

// Edit returns the replacement of one file of the module, by its path below the root, with the text that edit makes of it.
func (b *Builds) Edit(path string, edit func(text []byte) []byte) (map[string]string, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	original := filepath.Join(root, path)
	text, err := os.ReadFile(original)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "edited-")
	if err != nil {
		return nil, err
	}
	edited := filepath.Join(dir, filepath.Base(path))
	return map[string]string{original: edited}, os.WriteFile(edited, edit(text), 0o600)
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/waggle-net/waggle").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's folder: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
