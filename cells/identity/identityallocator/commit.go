package identityallocator

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// commit writes the rows that differ.
func (c *controller) commit(snapshot statedb.ReadTxn, in input, out output) error {
	if err := c.commitWanted(out.want); err != nil {
		return err
	}
	if err := c.commitAhead(&in); err != nil {
		return fmt.Errorf("write identities: %w", err)
	}
	txn := c.DB.WriteTxn(c.Identities, c.Of)
	defer txn.Abort()
	errs := []error{c.commitKnown(snapshot, txn, in, out)}
	resolved := 0
	written := map[uint16]memo{}
	outcomes := c.markOutcomes(in, out)
	for id := range in.marked {
		m, exists := c.memo[id]
		if !exists {
			if old, _, known := c.Of.Get(txn, identities.ByEndpoint(id)); known {
				_, _, err := c.Of.Delete(txn, old)
				errs = append(errs, err)
			}
			continue
		}
		ep := m.ep
		n, found := out.byKey[m.key]
		if !found {
			// The endpoint keeps the number of its previous labels, because it would be cut off without a number. The number of a previous endpoint with the same id is
			// removed.
			if old, _, known := c.Of.Get(txn, identities.ByEndpoint(ep.ID)); known && old.Attachment != ep.AttachmentID() {
				_, _, err := c.Of.Delete(txn, old)
				errs = append(errs, err)
			} else if known {
				resolved++
			}
			continue
		}
		resolved++
		if old := m.row; old != nil && m.rowKey == m.key && old.Identity == n.ID && old.Source == n.Source &&
			old.Attachment == ep.AttachmentID() && old.Why == out.why[m.key] {
			continue
		}
		row := &identities.EndpointIdentity{EndpointID: ep.ID, Attachment: ep.AttachmentID(), Identity: n.ID, Source: n.Source,
			Labels: n.Labels, Why: out.why[m.key]}
		m.row, m.rowKey = row, m.key
		written[ep.ID] = m
		if old, _, known := c.Of.Get(txn, identities.ByEndpoint(ep.ID)); known && old.Equal(row) {
			continue
		}
		_, _, err := c.Of.Insert(txn, row)
		errs = append(errs, err)
	}
	if in.whole && c.Of.NumObjects(txn) > resolved { // delete rows of removed endpoints
		for row := range c.Of.All(txn) {
			if _, used := c.memo[row.EndpointID]; !used {
				_, _, err := c.Of.Delete(txn, row)
				errs = append(errs, err)
			}
		}
	}
	if !c.complete && in.restored && resolved == len(c.memo) { // until the tables are initialized, every pass covers all endpoints
		c.Done(txn)
		c.complete = true
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write identities: %w", err)
	}
	txn.Commit()
	maps.Copy(c.memo, written)
	c.outcomes = outcomes
	return nil
}

// markOutcomes marks the endpoints of each label set whose number has changed or was removed, and returns the current outcomes of all sets.
func (c *controller) markOutcomes(in input, out output) map[string]outcome {
	now := make(map[string]outcome, len(out.byKey))
	for key, n := range out.byKey {
		now[key] = outcome{n.ID, n.Source, out.why[key]}
	}
	for key, of := range c.sets {
		before, had := c.outcomes[key]
		if after, has := now[key]; has != had || after != before {
			for id := range of {
				in.marked[id] = true
			}
		}
	}
	return now
}

// portion is the maximum number of objects in a write transaction. With all 40,000 of a large cluster, a transaction lasted more than ten seconds on a busy
// machine, so liveness reported that it hangs.
const portion = 2048

// commitAhead writes the changes of objects up to the last portion, which remains in the input. Until the tables are initialized no cell relies on their
// completeness, and later each portion is like a round that saw fewer changes.
func (c *controller) commitAhead(in *input) error {
	for len(in.objects) > portion {
		txn := c.DB.WriteTxn(c.Identities)
		if err := errors.Join(c.applyObjects(txn, in.objects[:portion])...); err != nil {
			txn.Abort()
			return err
		}
		txn.Commit()
		in.objects = in.objects[portion:]
	}
	return nil
}

// applyObjects copies changes of cilium-identities to identities.
func (c *controller) applyObjects(txn statedb.WriteTxn, objects []statedb.Change[*cilium.Identity]) (errs []error) {
	for _, change := range objects {
		if !inRange(change.Object) {
			continue
		}
		var err error
		if change.Deleted || !valid(change.Object) {
			err = c.remove(txn, change.Object.ID)
		} else {
			err = c.put(txn, &identities.Identity{ID: change.Object.ID, Labels: change.Object.Labels, Source: identities.CRD})
		}
		errs = append(errs, err)
	}
	return errs
}

// put writes a row that differs.
func (c *controller) put(txn statedb.WriteTxn, row *identities.Identity) error {
	if old, _, found := c.Identities.Get(txn, identities.ByID(row.ID)); found && old.Equal(row) {
		return nil
	}
	row.Since = time.Now().UTC()
	_, _, err := c.Identities.Insert(txn, row)
	return err
}

func (c *controller) remove(txn statedb.WriteTxn, id uint32) error {
	_, _, err := c.Identities.Delete(txn, &identities.Identity{ID: id})
	return err
}

// commitKnown copies changes of cilium-identities to identities, and adds identities that only this node has.
func (c *controller) commitKnown(snapshot statedb.ReadTxn, txn statedb.WriteTxn, in input, out output) error {
	var errs []error
	if _, _, found := c.Identities.Get(txn, identities.ByID(identity.Host)); !found {
		for _, id := range identity.Fixed() {
			errs = append(errs, c.put(txn, fixed(id)))
		}
	}
	errs = append(errs, c.applyObjects(txn, in.objects)...)
	ours := map[uint32]bool{}
	for _, n := range out.byKey {
		if _, _, mirrored := c.CRDs.Get(snapshot, cilium.IdentityByName(decimal(n.ID))); !mirrored && n.Source != identities.Reserved {
			errs = append(errs, c.put(txn, &identities.Identity{ID: n.ID, Labels: n.Labels, Source: n.Source}))
			ours[n.ID] = true
		}
	}
	for id := range c.local {
		if _, _, mirrored := c.CRDs.Get(snapshot, cilium.IdentityByName(decimal(id))); !ours[id] && !mirrored {
			errs = append(errs, c.remove(txn, id))
		}
	}
	c.local = ours
	return errors.Join(errs...)
}

func fixed(id uint32) *identities.Identity {
	return &identities.Identity{ID: id, Source: identities.Reserved, Labels: identity.Labels(id)}
}

// commitWanted updates the rows of label sets that still need an object.
func (c *controller) commitWanted(want map[string]*wanted) error {
	if len(want) == 0 && c.Wanted.NumObjects(c.DB.ReadTxn()) == 0 {
		return nil
	}
	txn := c.DB.WriteTxn(c.Wanted)
	defer txn.Abort()
	same := func(old, row *wanted) bool { return row.equal(old) }
	if err := rows.Replace(txn, c.Wanted, c.Wanted.All(txn), want, (*wanted).key, same); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
