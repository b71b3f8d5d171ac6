package nodeidallocator

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
)

const (
	fileKind = "node-ids"
	// fileName is the name of the first file. Older agents wrote all ids to this file.
	fileName = "ids.json"
	// fileIDs is the maximum number of ids in a file. It bounds the cost of the write for a new node in a large cluster.
	fileIDs = 128
)

// numberOf returns the number of the file of an id.
func numberOf(id uint16) int { return int(id) / fileIDs }

// nameOf returns the name of a file: ids.json, ids-1.json, ids-2.json.
func nameOf(number int) string {
	if number == 0 {
		return fileName
	}
	return fmt.Sprintf("ids-%d.json", number)
}

// files persist all ids for the next run of the agent.
type files struct{ store *statefile.Store }

func newFiles(s agentconfig.Agent) files {
	return files{statefile.New(filepath.Join(s.StateDir, "nodes"), fileKind)}
}

// read returns the rows of the previous run, and the numbers of the files that must be written because only the first file contains their ids. An unusable file
// is quarantined, and its nodes get new ids unless [reserve] finds the ids in the maps.
func (f files) read(log *slog.Logger, started time.Time) (rows []*nodeids.NodeID, missing []int, err error) {
	if err := f.store.Open(); err != nil {
		return nil, nil, fmt.Errorf("restore the ids of nodes: %w", err)
	}
	documents, err := f.store.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("restore the ids of nodes: %w", err)
	}
	lists := map[int][]*nodeids.NodeID{}
	for _, d := range documents {
		number := 0
		if d.Err == nil {
			number, d.Err = parseName(d.Name)
		}
		if d.Err == nil {
			lists[number], d.Err = decode(number, d.Document)
		}
		if d.Err != nil {
			delete(lists, number)
			kept, err := f.store.Quarantine(d.Name)
			log.Warn("A file of node ids cannot be used; nodes may get other ids", "file", d.Name, "keptAs", kept, "error", errors.Join(d.Err, err))
		}
	}
	names := map[string]bool{}
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(lists))) { // the first file may be older than the others
		for _, row := range lists[number] {
			own := numberOf(row.ID)
			if _, found := lists[own]; names[row.Name] || own != number && found {
				continue
			}
			if names[row.Name] = true; own != number && !slices.Contains(missing, own) {
				missing = append(missing, own)
			}
			if !row.Released.IsZero() {
				row.Released = started // passes of the collector are recorded only since the start
			}
			rows = append(rows, row)
		}
	}
	if len(missing) > 0 {
		missing = append(missing, 0)
	}
	slices.SortFunc(rows, func(a, b *nodeids.NodeID) int { return int(a.ID) - int(b.ID) })
	return rows, missing, nil
}

func parseName(name string) (number int, err error) {
	text, begins := strings.CutPrefix(name, "ids-")
	if text, ends := strings.CutSuffix(text, ".json"); begins && ends {
		number, err = strconv.Atoi(text)
	}
	if err != nil || number < 0 || number > numberOf(nodeids.Max) || name != nameOf(number) {
		return 0, fmt.Errorf("%w: not a name of a file of ids", statefile.ErrCorrupt)
	}
	return number, nil
}

// decode returns the rows of a file. It checks the invariants of the rows, because another version may have written the file or the disk may have corrupted it.
func decode(number int, document []byte) (rows []*nodeids.NodeID, err error) {
	if err := json.Unmarshal(document, &rows); err != nil {
		return nil, fmt.Errorf("%w: %w", statefile.ErrCorrupt, err)
	}
	ids, names := map[uint16]bool{}, map[string]bool{}
	for _, row := range rows {
		if row == nil || row.ID == 0 || row.ID > nodeids.Max || row.Name == "" || ids[row.ID] || names[row.Name] {
			return nil, fmt.Errorf("%w: an id or a name is missing or duplicate", statefile.ErrCorrupt)
		}
		if number > 0 && numberOf(row.ID) != number {
			return nil, fmt.Errorf("%w: id %d belongs to the file %s", statefile.ErrCorrupt, row.ID, nameOf(numberOf(row.ID)))
		}
		ids[row.ID], names[row.Name] = true, true
	}
	return rows, nil
}

// write replaces the contents of files. The first file is the last one, because it may contain ids that the other files lack until they are written.
func (f files) write(lists map[int][]*nodeids.NodeID) error {
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(lists))) {
		if err := f.store.Write(nameOf(number), lists[number]); err != nil {
			return fmt.Errorf("nodes may get other ids after a restart: %w", err)
		}
	}
	return nil
}
