package endpointmanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// found is one state file of the previous run before its row is inserted.
type found struct {
	name string // name of the file
	// damage is the reason why the file cannot be used unchanged. With damage, ep holds the fields that could be read, or is nil.
	damage error
	ep     *endpoints.Endpoint
}

// restore inserts rows for the state files. It holds ids and addresses before it inserts the rows, and allocations start after that. A damaged file is reported
// and affects its own endpoint only. An error means that the addresses in use are unknown, so the agent must not start.
func (m *manager) restore(done initialize) error {
	if err := m.files.Open(); err != nil {
		return fmt.Errorf("restore endpoints: %w", err)
	}
	files, err := m.files.ReadAll()
	if err != nil {
		return fmt.Errorf("restore endpoints: %w", err)
	}
	if err := readable(files); err != nil {
		return fmt.Errorf("restore endpoints: %w", err)
	}
	list := make([]found, len(files))
	for i, f := range files {
		list[i] = parse(f)
	}
	resolveConflicts(list)
	m.boot = m.kernel.boot()
	m.checkLinks(list)
	for _, f := range list {
		if f.ep != nil {
			m.hold(f.ep)
		}
	}
	if err := m.insertRestored(list, done); err != nil {
		return err
	}
	m.repairFiles(list)
	m.addresses.RestoreDone()
	close(m.restored)
	return nil
}

// readable returns an error if an existing file could not be read. Its addresses are unknown and must not be allocated, so the file must not be moved to bad/
// either.
func readable(files []statefile.File) error {
	for _, f := range files {
		known := f.Err == nil || errors.Is(f.Err, statefile.ErrCorrupt) || errors.Is(f.Err, statefile.ErrForeign)
		if !known && !errors.Is(f.Err, fs.ErrNotExist) { // a file that was removed after the list was made holds nothing
			return fmt.Errorf("%s: %w: its addresses are unknown; make it readable, or remove it if its pod is gone",
				f.Name, f.Err)
		}
	}
	return nil
}

// parse reads one file. The file's name determines the id: a copy under another name must not take the id of the original.
func parse(f statefile.File) found {
	r := found{name: f.Name, damage: f.Err}
	id, named := idOf(f.Name)
	if f.Err == nil {
		r.ep = new(endpoints.Endpoint)
		if err := json.Unmarshal(f.Document, r.ep); err != nil {
			r.damage = fmt.Errorf("%w: %w", statefile.ErrCorrupt, err)
		} else if err := complete(r.ep, id, named); err != nil {
			r.damage = fmt.Errorf("%w: %w", statefile.ErrCorrupt, err)
		}
	}
	if r.damage != nil {
		r.ep = nil
		if !errors.Is(r.damage, statefile.ErrForeign) {
			r.ep = salvage(f.Raw, id)
		}
		return r
	}
	r.ep.Restored = true
	return r
}

// complete returns an error if a row that was read lacks an id or an attachment, or has another id than its file's name.
func complete(ep *endpoints.Endpoint, id uint16, named bool) error {
	switch {
	case !named:
		return errors.New("its name is not the number of an endpoint")
	case ep.ID != id:
		return fmt.Errorf("it holds endpoint %d", ep.ID)
	case ep.ContainerID == "" || ep.IfName == "":
		return errors.New("it names no attachment")
	}
	return nil
}

func idOf(name string) (uint16, bool) {
	number, ok := strings.CutSuffix(name, ".json")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(number, 10, 16)
	if err != nil || id < 1 || id > maxID || fileName(uint16(id)) != name {
		return 0, false
	}
	return uint16(id), true
}

// checkLinks quarantines endpoints whose link is missing: the pod may have ended while the agent was down, or its link was deleted. The address stays held
// until proofs, a DEL or a GC remove the endpoint. A quarantine because of the link ends when the link exists again.
func (m *manager) checkLinks(list []found) {
	all, err := m.kernel.links()
	if err != nil {
		m.log.Warn("Cannot check whether the links of restored endpoints exist", "error", err)
		return
	}
	for _, f := range list {
		if f.ep == nil || f.ep.Quarantine != "" && !forItsLink(f.ep) {
			continue
		}
		_, _, f.ep.Quarantine = all.find(f.ep)
	}
}

// hold claims the addresses of a restored endpoint. It quarantines the endpoint if an address has another owner.
func (m *manager) hold(ep *endpoints.Endpoint) {
	if err := m.addresses.Restore(claims(ep, "", "")); err != nil && ep.Quarantine == "" {
		ep.Quarantine = "its address is taken: " + err.Error()
	}
}

// insertRestored inserts all rows in one commit, which also completes the initializer.
func (m *manager) insertRestored(list []found, done initialize) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.db.WriteTxn(m.endpoints)
	defer txn.Abort()
	var youngest *endpoints.Endpoint
	for _, f := range list {
		if f.ep == nil {
			continue
		}
		if _, _, err := m.endpoints.Insert(txn, f.ep); err != nil {
			return fmt.Errorf("restore endpoint %d: %w", f.ep.ID, err)
		}
		if youngest == nil || endpoints.CompareAge(f.ep, youngest) > 0 {
			youngest = f.ep
		}
	}
	if youngest != nil {
		m.lastID, m.lastSerial = youngest.ID, youngest.Serial // new ids follow the last assigned one
	}
	done(txn)
	txn.Commit()
	return nil
}
