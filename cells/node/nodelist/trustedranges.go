package nodelist

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
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/throttle"
)

const (
	trustedRangesKind = "former-ranges"
	trustedRangesFile = "nodes.json"
	// maxTrustedNodes limits the nodes in the file. Most nodes use less than 100 bytes.
	maxTrustedNodes = 8192
)

// trustedRanges are the pod ranges that nodes had by decision of a writer other than their agents, by node name: the ranges of Nodes, or with --ipam=cluster-pool the
// ranges that the cluster role assigned. With nodesDecide, only these count as former ranges of a node. It also has the claims of nodes whose objects were
// deleted. Files store both for the next run.
type trustedRanges struct {
	store    *statefile.Store
	log      *slog.Logger
	ranges   map[string][]netip.Prefix
	retained map[string]*retained // nodes with a deleted object, by name
	dirty    bool                 // the files are out of date
	full     bool                 // the limit of nodes with trusted ranges has excluded a node
	due      time.Time            // earliest time of the next write
	pace     throttle.Limit

	retainedFull bool // the limit of nodes with retained claims has excluded a node
}

const (
	// writeRatio is the ratio of the pause after a write of the file to the duration of the write. While nodes join a large cluster, each of them changes the
	// file, and a write of 5,000 nodes takes some milliseconds. No node is resolved during a write, so the time of a slow disk counts.
	writeRatio = 200
	// longestPause bounds this pause: a write to a disk that stalls takes seconds.
	longestPause = 10 * time.Second
)

func newTrustedRanges(s agentconfig.Agent, log *slog.Logger) *trustedRanges {
	return &trustedRanges{store: statefile.New(filepath.Join(s.StateDir, trustedRangesKind), trustedRangesKind), log: log, ranges: map[string][]netip.Prefix{},
		retained: map[string]*retained{}, pace: throttle.Limit{Ratio: writeRatio, Max: longestPause, Measure: throttle.WallTime}}
}

// load reads the files of the previous run. It quarantines an unusable file: nodes have their current ranges without it.
func (s *trustedRanges) load() {
	files, err := s.store.ReadAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("The previous ranges of nodes cannot be read; pods with addresses in them may get the identity world", "error", err)
	}
	for _, f := range files {
		var invalid error
		switch f.Name {
		case trustedRangesFile:
			invalid = read(f, s.ranges)
		case retainedFile:
			invalid = read(f, s.retained)
		}
		if invalid != nil {
			kept, err := s.store.Quarantine(f.Name)
			s.log.Warn("The previous ranges of nodes cannot be used; pods with addresses in them may get the identity world", "keptAs", kept, "error", errors.Join(invalid, err))
		}
	}
	s.restore()
}

// read adds the document of a file to a map. It adds nothing after an error.
func read[V any](f statefile.File, to map[string]V) error {
	if f.Err != nil {
		return f.Err
	}
	document := map[string]V{}
	if err := json.Unmarshal(f.Document, &document); err != nil {
		return fmt.Errorf("decode %s: %w", f.Name, err)
	}
	maps.Copy(to, document)
	return nil
}

// take adds the first maxNoted ranges of a node, and keeps the last maxNoted ranges of each node.
func (s *trustedRanges) take(node string, ranges []netip.Prefix) {
	for _, p := range ranges[:min(len(ranges), maxNoted)] {
		list, known := s.ranges[node]
		if slices.Contains(list, p) {
			continue
		}
		if !known && len(s.ranges) >= maxTrustedNodes {
			if !s.full {
				s.log.Warn("Cannot record the ranges of all nodes: too many nodes; pods with addresses in previous ranges may get the identity world", "limit", maxTrustedNodes, "node", node)
			}
			s.full = true
			return
		}
		list = append(slices.Clip(list), p)
		s.ranges[node], s.dirty = list[max(0, len(list)-maxNoted):], true
	}
}

// forget removes the ranges of removed nodes.
func (s *trustedRanges) forget(removed func(node string) bool) {
	before := len(s.ranges)
	maps.DeleteFunc(s.ranges, func(node string, _ []netip.Prefix) bool { return removed(node) })
	s.dirty = s.dirty || len(s.ranges) != before
}

// save writes the files if they are out of date and the pause after the previous write has ended. It returns the rest of the pause if a write remains to be done.
func (s *trustedRanges) save() (rest time.Duration, err error) {
	if !s.dirty {
		return 0, nil
	}
	if rest := time.Until(s.due); rest > 0 {
		return rest, nil
	}
	took := s.pace.Measure(func() {
		if err = s.store.Open(); err == nil {
			err = errors.Join(s.store.Write(trustedRangesFile, s.ranges), s.storeRetained())
		}
	})
	if err != nil {
		return 0, fmt.Errorf("record the previous ranges of nodes: %w: free space in the state directory", err)
	}
	s.dirty, s.due = false, time.Now().Add(s.pace.After(took))
	return 0, nil
}

// flush writes the files if they are out of date, when the agent stops.
func (s *trustedRanges) flush() {
	s.due = time.Time{}
	if _, err := s.save(); err != nil {
		s.log.Warn("The latest ranges of nodes are lost; pods with addresses in previous ranges may get the identity world", "error", err)
	}
}

// has reports whether the named node had a range.
func (s *trustedRanges) has(node string, p netip.Prefix) bool {
	return slices.Contains(s.ranges[node], p)
}
