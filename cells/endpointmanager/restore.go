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

// found is one file of an earlier run on its way to become a row.
type found struct {
	name string // of the file
	// damage is why the file cannot be used as it is; ep then holds what could be read of it, or is nil.
	damage error
	ep     *endpoints.Endpoint
}

// restore makes rows of the state files. Ids and addresses are held before the rows appear, and only then may anybody
// allocate. Whatever is wrong with one file is reported and costs nothing but the use of that endpoint; an error means
// that nobody can know which addresses are in use, so the agent must not start.
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

// readable tells whether each file that there is could be read: nobody may get the addresses in one that could not be,
// and to set it aside would be to forget them.
func readable(files []statefile.File) error {
	for _, f := range files {
		known := f.Err == nil || errors.Is(f.Err, statefile.ErrCorrupt) || errors.Is(f.Err, statefile.ErrForeign)
		if !known && !errors.Is(f.Err, fs.ErrNotExist) { // one that went away since the list was made holds nothing
			return fmt.Errorf("%s: %w: nobody knows which addresses it holds; make it readable, or remove it if its pod is gone",
				f.Name, f.Err)
		}
	}
	return nil
}

// parse reads one file. Its name says the id: a copy under another name must not take the id of its original.
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

// complete tells whether a row that was read can stand in the table.
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

// checkLinks quarantines endpoints whose link is gone: the pod may have ended while the agent was away, or somebody
// deleted the link of a living one. Proofs decide, or the runtime's DEL or GC; until then the address stays held. One that
// an earlier look had put there for its link comes out when the link is back.
func (m *manager) checkLinks(list []found) {
	all, err := m.kernel.links()
	if err != nil {
		m.log.Warn("Cannot tell whether the links of restored endpoints exist", "error", err)
		return
	}
	for _, f := range list {
		if f.ep == nil || f.ep.Quarantine != "" && !forItsLink(f.ep) {
			continue
		}
		_, _, f.ep.Quarantine = all.of(f.ep)
	}
}

// hold takes the addresses of an endpoint before anybody else can.
func (m *manager) hold(ep *endpoints.Endpoint) {
	if err := m.addresses.Restore(claims(ep, "", "")); err != nil && ep.Quarantine == "" {
		ep.Quarantine = "its address is taken: " + err.Error()
	}
}

// insertRestored stores all rows in the commit that also says that they are all.
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
		m.lastID, m.lastSerial = youngest.ID, youngest.Serial // new ids go on behind the last one that was given
	}
	done(txn)
	txn.Commit()
	return nil
}
