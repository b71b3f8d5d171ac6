package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/sysctlrecord"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// fakeKernel is a [kernel] with state. Writes to the setting "net/clamped" have no effect; a setting with the value "unreadable" cannot be read.
type fakeKernel struct {
	mu            sync.Mutex
	values        map[string]string
	fail          int // number of the next writes that fail
	writes        int
	notifications chan rtnl.Setting
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{values: map[string]string{}, notifications: make(chan rtnl.Setting)}
}

// Next implements announcer.
func (k *fakeKernel) Next(ctx context.Context) ([]rtnl.Setting, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case s := <-k.notifications:
		return []rtnl.Setting{s}, nil
	}
}

func (k *fakeKernel) Read(name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, found := k.values[name]
	if !found {
		return "", fs.ErrNotExist
	}
	if v == "unreadable" {
		return "", errors.New("too many open files")
	}
	return v, nil
}

func (k *fakeKernel) Write(name, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	if k.fail > 0 {
		k.fail--
		return errors.New("procfs is tired")
	}
	if name != "net/clamped" {
		k.values[name] = value
	}
	return nil
}

func (k *fakeKernel) commands(w sysctls.Writer, v verifier) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"want": script.Command(script.CmdUsage{Summary: "replace the settings of an owner", Args: "owner [name=value]... (?name=value is optional)"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				var settings []sysctls.Setting
				for _, spec := range args[1:] {
					name, value, _ := strings.Cut(spec, "=")
					name, optional := strings.CutPrefix(name, "?")
					settings = append(settings, sysctls.Setting{Name: name, Value: value, Optional: optional})
				}
				return nil, w.Replace(args[0], settings)
			}),
		"update": script.Command(script.CmdUsage{Summary: "change single settings of an owner", Args: "owner [name=value | -name]..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				var put []sysctls.Setting
				var remove []string
				for _, spec := range args[1:] {
					if name, gone := strings.CutPrefix(spec, "-"); gone {
						remove = append(remove, name)
						continue
					}
					name, value, _ := strings.Cut(spec, "=")
					put = append(put, sysctls.Setting{Name: name, Value: value})
				}
				return nil, w.Update(args[0], put, remove)
			}),
		"announce": script.Command(script.CmdUsage{Summary: "the kernel announces a setting", Args: "name value"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				value, err := strconv.Atoi(args[1])
				k.notifications <- rtnl.Setting{Name: args[0], Value: value}
				return nil, err
			}),
		"verify": script.Command(script.CmdUsage{Summary: "run the verify job now"},
			func(*script.State, ...string) (script.WaitFunc, error) { _, err := v.look(); return nil, err }),
		"set": script.Command(script.CmdUsage{Summary: "set values in the fake kernel as another program", Args: "name=value..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				for _, spec := range args {
					name, value, _ := strings.Cut(spec, "=")
					k.values[name] = value
				}
				return nil, nil
			}),
		"fail": script.Command(script.CmdUsage{Summary: "make the next two writes fail"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.fail = 2
				return nil, nil
			}),
		"kernel": script.Command(script.CmdUsage{Summary: "print the fake kernel"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				var out strings.Builder
				for _, name := range slices.Sorted(maps.Keys(k.values)) {
					fmt.Fprintf(&out, "%s = %s\n", name, k.values[name])
				}
				fmt.Fprintln(&out, "writes:", k.writes)
				return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
			}),
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		k := newFakeKernel()
		return []cell.Cell{
			driftledger.Cell,
			cell.Provide(func() kernel { return k }, func() announcer { return k }),
			cell.Module("sysctl", "Sysctl", Reconciler, cell.Provide(k.commands)),
		}
	})
}

// tree returns a procfs in a temporary directory. The directory contains a secret outside the procfs that names must not reach.
func tree(t *testing.T) (k recorded, dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, value := range map[string]string{"sys/net/ipv4/ip_forward": "0\n", "sys/kernel/secret": "1\n", "secret": "1\n"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(value), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "sys/net/link")); err != nil {
		t.Fatal(err)
	}
	return newProcfs(agentconfig.Agent{Procfs: dir, StateDir: filepath.Join(dir, "run")}).(recorded), filepath.Join(dir, "sys")
}

func TestProcfs_WritesAndReadsBack(t *testing.T) {
	t.Parallel()
	p, dir := tree(t)
	s := &sysctls.Setting{Name: "net/ipv4/ip_forward", Value: "1"}
	if err := newOps(p).Update(context.Background(), nil, 0, s); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Read(s.Name); got != "1" || err != nil {
		t.Fatalf("read %q, error %v", got, err)
	}
	if was, err := p.record.Pending(p.FS); err != nil || !slices.Equal(was, []sysctlrecord.Pending{{Name: s.Name, Have: "1", Want: "0"}}) {
		t.Errorf("what it was is kept as %v, %v", was, err)
	}
	missing := &sysctls.Setting{Name: "net/ipv4/nothing", Value: "1"}
	if err := newOps(p).Update(context.Background(), nil, 0, missing); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing setting gives %v", err)
	}
	missing.Optional = true
	if err := newOps(p).Update(context.Background(), nil, 0, missing); err != nil {
		t.Fatalf("a missing optional setting gives %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, missing.Name)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a file was made for it")
	}
}

func TestProcfs_RejectsPathsOutside(t *testing.T) {
	t.Parallel()
	p, dir := tree(t)
	for _, name := range []string{"net/../../secret", "net/../kernel/secret", "kernel/secret", "net/link", "/etc/passwd", "net//ipv4", "net/", ""} {
		if err := newOps(p).Update(context.Background(), nil, 0, &sysctls.Setting{Name: name, Value: "2"}); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	for _, name := range []string{"../secret", "kernel/secret"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != "1\n" || err != nil {
			t.Errorf("%s is %q, error %v", name, b, err)
		}
	}
}

// FuzzValidName checks that accepted names stay below net/.
func FuzzValidName(f *testing.F) {
	for _, s := range []string{"net/ipv4/ip_forward", "net/../x", "net/./a", "/net/a", "net", "net/a/..", "net/a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if validName(name) != nil {
			return
		}
		if !filepath.IsLocal(name) || filepath.Join("/proc/sys", name) != "/proc/sys/"+name || !strings.HasPrefix(name, "net/") {
			t.Fatalf("%q was accepted", name)
		}
	})
}
