package nodeids

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/statefile"
	tables "github.com/waggle-net/waggle/pkg/tables/nodeids"
)

const (
	fileKind = "node-ids"
	fileName = "ids.json"
)

// file is the record of all ids for the next run of the agent.
type file struct{ store *statefile.Store }

func newFile(s settings.Agent) file {
	return file{statefile.New(filepath.Join(s.StateDir, "nodes"), fileKind)}
}

// read returns the rows that the last run wrote. A file that cannot be used is set aside: nodes then get new ids.
func (f file) read(log *slog.Logger, started time.Time) ([]*tables.NodeID, error) {
	if err := f.store.Open(); err != nil {
		return nil, fmt.Errorf("restore the ids of nodes: %w", err)
	}
	documents, err := f.store.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("restore the ids of nodes: %w", err)
	}
	var rows []*tables.NodeID
	for _, d := range documents {
		if d.Err == nil {
			rows, d.Err = decode(d.Name, d.Document)
		}
		if d.Err != nil {
			kept, err := f.store.SetAside(d.Name)
			log.Warn("The file of node ids cannot be used; nodes may get other ids", "file", d.Name, "keptAs", kept, "error", errors.Join(d.Err, err))
		}
	}
	for _, row := range rows {
		if !row.Released.IsZero() {
			row.Released = started // the collector's passes are known since then
		}
	}
	return rows, nil
}

// decode checks what a row promises: another agent may have written the file, or a disk changed it.
func decode(name string, document []byte) (rows []*tables.NodeID, err error) {
	if name != fileName {
		return nil, fmt.Errorf("%w: the name is not %s", statefile.ErrCorrupt, fileName)
	}
	if err := json.Unmarshal(document, &rows); err != nil {
		return nil, fmt.Errorf("%w: %w", statefile.ErrCorrupt, err)
	}
	ids, names := map[uint16]bool{}, map[string]bool{}
	for _, row := range rows {
		if row == nil || row.ID == 0 || row.ID > tables.Max || row.Name == "" || ids[row.ID] || names[row.Name] {
			return nil, fmt.Errorf("%w: an id or a name is missing or there twice", statefile.ErrCorrupt)
		}
		ids[row.ID], names[row.Name] = true, true
	}
	return rows, nil
}

func (f file) write(rows []*tables.NodeID) error {
	if err := f.store.Write(fileName, rows); err != nil {
		return fmt.Errorf("nodes may get other ids after a restart: %w", err)
	}
	return nil
}
