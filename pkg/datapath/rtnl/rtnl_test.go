package rtnl

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestRetry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failures int
		failure  error
		calls    int
		ok       bool
	}{
		"succeeds at once":           {0, nil, 1, true},
		"interrupted twice":          {2, netlink.ErrDumpInterrupted, 3, true},
		"interrupted by a signal":    {1, unix.EINTR, 2, true},
		"interrupted without end":    {1000, netlink.ErrDumpInterrupted, dumpAttempts, false},
		"a rejection is not retried": {1000, unix.EPERM, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			got, err := retry("things", func() ([]int, error) {
				if calls++; calls <= c.failures {
					return []int{-1}, fmt.Errorf("dump: %w", c.failure)
				}
				return []int{1, 2}, nil
			})
			if calls != c.calls || (err == nil) != c.ok {
				t.Fatalf("%d calls, error %v; want %d calls, success %v", calls, err, c.calls, c.ok)
			}
			if c.ok && !slices.Equal(got, []int{1, 2}) {
				t.Fatalf("got %v, which an interrupted dump returned", got)
			}
			if !c.ok && !errors.Is(err, c.failure) {
				t.Fatalf("the cause is lost: %v", err)
			}
		})
	}
}

func TestPrivilegedIsGone(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		h, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		addr, _ := netlink.ParseAddr("192.0.2.1/32")
		addr6, _ := netlink.ParseAddr("2001:db8::1/128")
		missing := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 4242}}
		_, byName := h.LinkByName("nothing")
		for what, err := range map[string]error{
			"link by name":   byName,
			"delete link":    h.LinkDel(missing),
			"delete address": h.AddrDel(lo, addr),
			"IPv6 address":   h.AddrDel(lo, addr6),
			"delete route":   h.RouteDel(&netlink.Route{LinkIndex: 1, Dst: addr.IPNet}),
			"IPv6 route":     h.RouteDel(&netlink.Route{LinkIndex: 1, Dst: addr6.IPNet}),
			"delete neighbour": h.NeighDel(&netlink.Neigh{LinkIndex: 1, IP: addr.IP,
				HardwareAddr: []byte{2, 0, 0, 0, 0, 1}}),
		} {
			if err == nil || !IsGone(err) {
				t.Errorf("%s that does not exist: %v is not recognised as gone", what, err)
			}
		}
		for _, err := range []error{nil, unix.EPERM, unix.EBUSY, unix.EEXIST, errors.New("text")} {
			if IsGone(err) {
				t.Errorf("%v counts as gone", err)
			}
		}
	})
}

// dumps lists the functions of package netlink that read lists. Only this package retries interrupted calls.
var dumps = []string{"LinkList", "AddrList", "RouteList", "RouteListFiltered", "RouteListFilteredIter", "NeighList",
	"NeighListExecute", "NeighProxyList", "RuleList", "RuleListFiltered", "QdiscList", "ClassList", "FilterList", "BridgeVlanList"}

func TestDumpCalls_OnlyInThisPackage(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatalf("find the module: %v", err)
	}
	files := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && e.Name() != ".." || path == filepath.Join(root, "test") || path == filepath.Join(root, "pkg", "datapath", "rtnl")):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		for _, found := range dumpCalls(t, path) {
			t.Errorf("%s: dumps through package netlink: use the lists of package rtnl, which retry interrupted dumps", found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("looked at %d files only", files)
	}
}

// dumpCalls finds selectors of raw dumps in files that import package netlink or this package, whose handle embeds the one of netlink.
func dumpCalls(t *testing.T, path string) (found []string) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil // the compiler reports the error
	}
	relevant := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		return strings.Contains(i.Path.Value, "vishvananda/netlink") || strings.HasSuffix(i.Path.Value, `pkg/datapath/rtnl"`)
	})
	if !relevant {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(dumps, s.Sel.Name) {
			found = append(found, set.Position(s.Pos()).String()+": "+s.Sel.Name)
		}
		return true
	})
	return found
}

func TestDumpCalls_AreFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.go")
	source := "package x\nimport \"github.com/vishvananda/netlink\"\nfunc f() { _, _ = netlink.LinkList() }\n"
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := dumpCalls(t, path); len(got) != 1 {
		t.Fatalf("found %v, want one call", got)
	}
}
