package identityallocator

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

const fileKind = "identity"

// number is the identity number of one label set.
type number struct {
	ID     uint32            `json:"id"`
	Labels map[string]string `json:"labels"`
	Source identities.Source `json:"source"`
}

// numbers stores the numbers of endpoints by the key of their labels, each also in a file, so that the next run uses the same numbers. Only one goroutine uses
// it.
type numbers struct {
	files *statefile.Store
	byKey map[string]number
	taken map[uint32]string // the reverse map
	last  map[identities.Source]uint32
	dirty map[uint32]bool            // numbers whose file is outdated
	full  map[identities.Source]bool // no number was free, and none was released since
}

func newNumbers(s agentconfig.Agent) *numbers {
	return &numbers{files: statefile.New(filepath.Join(s.StateDir, "identities"), fileKind), byKey: map[string]number{},
		taken: map[uint32]string{}, last: map[identities.Source]uint32{},
		dirty: map[uint32]bool{}, full: map[identities.Source]bool{}}
}

// load reads the files of the previous run. A damaged file is moved to bad/, and its endpoints get other numbers.
func (n *numbers) load(log *slog.Logger) error {
	if err := n.files.Open(); err != nil {
		return fmt.Errorf("restore identities: %w", err)
	}
	files, err := n.files.ReadAll()
	if err != nil {
		return fmt.Errorf("restore identities: %w", err)
	}
	for _, f := range files {
		var entry number
		if f.Err == nil {
			f.Err = json.Unmarshal(f.Document, &entry)
		}
		if f.Err == nil && (f.Name != name(entry.ID) || len(entry.Labels) == 0) {
			f.Err = fmt.Errorf("%w: it holds number %d with %d labels", statefile.ErrCorrupt, entry.ID, len(entry.Labels))
		}
		if f.Err != nil {
			kept, err := n.files.Quarantine(f.Name)
			log.Warn("A file of an identity cannot be used; its endpoints may get another number", "file", f.Name, "keptAs", kept,
				"error", errors.Join(f.Err, err))
			continue
		}
		n.set(entry)
		n.last[entry.Source] = max(n.last[entry.Source], entry.ID)
	}
	clear(n.dirty)
	return nil
}

// save writes the outdated files. An error does not delay other files, up to maxProblems errors: a full disk has one for each file.
func (n *numbers) save() error {
	var errs []error
	for id := range n.dirty {
		if len(errs) == maxProblems {
			break
		}
		var err error
		if key, used := n.taken[id]; used {
			err = n.files.Write(name(id), n.byKey[key])
		} else {
			err = n.files.Remove(name(id))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("store identity %d: %w", id, err))
			continue
		}
		delete(n.dirty, id)
	}
	return errors.Join(errs...)
}

func name(id uint32) string { return strconv.FormatUint(uint64(id), 10) + ".json" }

// set assigns the number of entry to its labels.
func (n *numbers) set(entry number) {
	key := cilium.LabelsKey(entry.Labels)
	old, found := n.byKey[key]
	if found && old.ID == entry.ID && old.Source == entry.Source {
		return
	}
	if other, found := n.taken[entry.ID]; found && other != key {
		delete(n.byKey, other) // the number belongs to other labels now
	}
	if found {
		delete(n.taken, old.ID)
		n.dirty[old.ID] = true
		clear(n.full)
	}
	n.byKey[key], n.taken[entry.ID], n.dirty[entry.ID] = entry, key, true
}

// retain removes the numbers of labels that no endpoint has.
func (n *numbers) retain(used func(key string) bool) {
	for key, entry := range n.byKey {
		if !used(key) {
			delete(n.byKey, key)
			delete(n.taken, entry.ID)
			n.dirty[entry.ID] = true
			clear(n.full)
		}
	}
}

// errFull means that every number of a range is in use.
var errFull = errors.New("all are in use")

// allocate assigns a number of this node to labels. A released number is reused as late as possible.
func (n *numbers) allocate(labels map[string]string, source identities.Source) (number, error) {
	low, high := identity.ClusterMin, identity.ClusterMax
	if source == identities.Provisional {
		low, high = identity.ProvisionalScope+1, identity.ProvisionalMax
	}
	id := max(n.last[source], low-1)
	for range high - low + 1 {
		if n.full[source] {
			break
		}
		if id++; id > high {
			id = low
		}
		if _, taken := n.taken[id]; !taken {
			n.last[source] = id
			entry := number{ID: id, Labels: labels, Source: source}
			n.set(entry)
			return entry, nil
		}
	}
	n.full[source] = true
	return number{}, fmt.Errorf("no number of %d to %d is free: %w", low, high, errFull)
}
