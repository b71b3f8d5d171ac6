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

// Build configures an agent that differs from the released one.
type Build struct {
	// Generation of the datapath; 0 keeps the one in the sources.
	Generation int
	// Replace maps absolute paths of sources and embedded objects to the files that replace them.
	Replace map[string]string
	// Name distinguishes builds with replaced files, in this run and in later ones.
	Name string
	// Tags are comma-separated build tags: "freeze" lets tests freeze loops (cell liveness), and "shortlimits" reduces the limits to a tenth (package watchdog).
	Tags string
}

// Builds builds agents of other versions, each once.
type Builds struct {
	dir string

	mu   sync.Mutex        // guards made, and serializes builds, which would compete for the CPUs
	made map[string]string // path by build
}

// NewBuilds returns Builds that stores programs in dir.
func NewBuilds(dir string) *Builds { return &Builds{dir: dir, made: make(map[string]string)} }

// BuildPrograms builds waggle-agent, waggle-cni and waggle in dir. It uses the flags of the Makefile, so that the compiled packages are reused.
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

// Agent returns the path of the agent for a build, and builds it if necessary.
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

// linked creates a program at path. It links the program into the cache that clones share, unless the cached file is current.
func linked(path, place string, args []string) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	kept := filepath.Join(cache, "programs", place)
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(kept+".lock", os.O_CREATE|os.O_RDWR, 0o644) // serializes with other runs that build the same program
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

// UseAgent selects the node's agent program from its next start on; "" selects the one in BinDir.
func (n *Node) UseAgent(path string) { n.agentPath = path }

// UpgradeAgent stops the agent as a DaemonSet's update does, starts another build and waits until it is ready.
func (n *Node) UpgradeAgent(ctx context.Context, path string) error {
	n.UseAgent(path)
	if err := errors.Join(n.StopAgent(ctx), n.StartAgent()); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// Datapath compiles the datapath from changed sources, and returns the replacements for a [Build]. The function edit gets the name and the text of each
// source, header and hand-written Go file in bpf/ and returns the new text.
func (b *Builds) Datapath(edit func(name, text string) string) (map[string]string, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "datapath-")
	if err != nil {
		return nil, err
	}
	// The copy of the folder is in a module with the same name, because the generator is a tool of the module.
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

// objects matches the files that the generator creates in bpf/.
const objects = "*_bpfel.*"

// compiled compiles the datapath in a copy of the module and returns the objects. Their inputs are the sources, the module's tools and the Debian packages of
// the compiler. If no input has changed, the objects come from the cache that clones share, unless WAGGLE_ALL is set.
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
	if found, err := cachedObjects(kept); err != nil || len(found) > 0 {
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

// cachedObjects returns the objects in a folder of the cache, or none if WAGGLE_ALL is set, which disables cached results.
func cachedObjects(dir string) ([]string, error) {
	if os.Getenv("WAGGLE_ALL") != "" {
		return nil, nil
	}
	return filepath.Glob(filepath.Join(dir, objects))
}

// hashDatapath returns the SHA-256 of all inputs of the objects in bpf/.
func hashDatapath(module string) (string, error) {
	sum := sha256.New()
	versions, err := exec.Command("dpkg-query", "-W", "clang-19", "llvm-19", "libbpf-dev", "linux-libc-dev").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the versions of the compiler's packages: %w", err)
	}
	sum.Write(versions)
	for _, pattern := range []string{"go.sum", "bpf/*.c", "bpf/lib/*.h", "bpf/gen.go", "bpf/internal/*/*.go"} {
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

// cacheDir returns the folder for files that depend only on their inputs: $WAGGLE_CACHE, or waggle in the user's cache folder.
func cacheDir() (string, error) {
	if dir := os.Getenv("WAGGLE_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "waggle"), err
}

// keep copies files to a folder atomically: the folder appears with all files or not at all.
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

// editFiles rewrites the files of a copy of bpf/ and returns the changed Go files.
func editFiles(dir string, edit func(name, text string) string) (changed []string, err error) {
	for _, pattern := range []string{"*.c", "lib/*.h", "layouts.go"} {
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

// Edit returns the replacement of one file of the module, by its path below the root, with the text that edit returns.
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
