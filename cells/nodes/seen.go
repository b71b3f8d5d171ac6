package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/statefile"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

const (
	seenKind = "former-ranges"
	seenFile = "nodes.json"
	// maxSeen bounds the nodes in the file.
	maxSeen = 1024
)

// seen are the pod ranges that Nodes had, by the name of the node: agents can write none of them. Where Nodes decide about ranges, only these are believed to be former
// ranges of a node. Those that a Node no longer has stand in a file, for the next run.
type seen struct {
	store  *statefile.Store
	log    *slog.Logger
	ranges map[string][]netip.Prefix
	former map[string][]netip.Prefix // those of ranges that the Node of the name does not have
	dirty  bool                      // the file says something else than former
}

func newSeen(s settings.Agent, log *slog.Logger) *seen {
	return &seen{store: statefile.New(filepath.Join(s.StateDir, seenKind), seenKind), log: log, ranges: map[string][]netip.Prefix{}, former: map[string][]netip.Prefix{}}
}

// load reads the file of the previous run. One that cannot be used is set aside: without it nodes have their present ranges all the same.
func (s *seen) load() {
	files, err := s.store.ReadAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("The former ranges of nodes cannot be read; pods with addresses of them may be the world", "error", err)
	}
	for _, f := range files {
		if f.Name != seenFile {
			continue
		}
		former := map[string][]netip.Prefix{}
		if f.Err == nil {
			f.Err = json.Unmarshal(f.Document, &former)
		}
		if f.Err != nil {
			kept, err := s.store.SetAside(f.Name)
			s.log.Warn("The former ranges of nodes cannot be used; pods with addresses of them may be the world", "keptAs", kept, "error", errors.Join(f.Err, err))
			continue
		}
		maps.Copy(s.former, former)
		maps.Copy(s.ranges, former)
	}
}

// take remembers the ranges of the Node in a row, the last maxNoted of each node.
func (s *seen) take(n *tables.Node) {
	now := n.CIDRs[:n.FromNode]
	for _, p := range now {
		if !s.has(n.Name, p) {
			list := append(slices.Clip(s.ranges[n.Name]), p)
			s.ranges[n.Name] = list[max(0, len(list)-maxNoted):]
		}
	}
	if len(now) > 0 { // a Node that has none yet may get its former ones again
		s.set(n.Name, slices.DeleteFunc(slices.Clone(s.ranges[n.Name]), func(p netip.Prefix) bool { return slices.Contains(now, p) }))
	}
}

// forget forgets a node that is removed.
func (s *seen) forget(node string) {
	delete(s.ranges, node)
	s.set(node, nil)
}

func (s *seen) set(node string, former []netip.Prefix) {
	if slices.Equal(s.former[node], former) || len(s.former) >= maxSeen && s.former[node] == nil {
		return
	}
	s.dirty = true
	if s.former[node] = former; len(former) == 0 {
		delete(s.former, node)
	}
}

// save writes the file if it has to say something else.
func (s *seen) save() error {
	if !s.dirty {
		return nil
	}
	err := s.store.Open()
	if err == nil {
		err = s.store.Write(seenFile, s.former)
	}
	if err != nil {
		return fmt.Errorf("record the former ranges of nodes: %w: make room in the state directory", err)
	}
	s.dirty = false
	return nil
}

// has reports whether the Node of that name had a range.
func (s *seen) has(node string, p netip.Prefix) bool { return slices.Contains(s.ranges[node], p) }
