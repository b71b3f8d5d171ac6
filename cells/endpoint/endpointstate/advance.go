package endpointstate

import (
	"time"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// advance returns the next state of an existing endpoint. It returns old itself when nothing has changed.
func advance(old *endpointstates.EndpointState, ep *endpoints.Endpoint, o observation, now time.Time,
) *endpointstates.EndpointState {
	next := *old
	next.Identity, next.Error, next.Waiting = o.identity, o.err, ""
	if ep.Quarantine != "" {
		next.Error = "in quarantine: " + ep.Quarantine
	}
	through := path(old.State, situation{
		wanted: true, restored: ep.Restored, quarantined: ep.Quarantine != "", progress: o.progress,
	})
	if len(through) > 0 {
		next.State = through[len(through)-1]
	}
	if next.State == endpointstates.Ready {
		next.Revision = uint64(o.revision)
	} else if next.Error == "" {
		next.Waiting = o.waiting
	}
	next.Notice = notice(ep, o)
	if next.Equal(old) {
		return old
	}
	row := withHistory(&next, through, now)
	if row.Error != "" && row.Error != old.Error {
		row = row.WithLog(endpointstates.LogEntry{Time: now, Failed: true, State: row.State, Message: row.Error})
	}
	if row.Notice != "" && row.Notice != old.Notice {
		row = row.WithLog(endpointstates.LogEntry{Time: now, State: row.State, Message: row.Notice})
	}
	return row
}

// notice describes a condition of a working endpoint that an operator should know.
func notice(ep *endpoints.Endpoint, o observation) string {
	switch {
	case ep.LabelsMissing != "":
		return "unknown: " + ep.LabelsMissing
	case ep.Doubt != "":
		return "it works, but " + ep.Doubt
	case identity.IsProvisional(o.identity):
		notice := "its identity is local to this node until the cluster has one for its labels"
		if o.why != "" {
			notice += ": " + o.why
		}
		return notice
	}
	return ""
}

// withHistory returns a copy of row with one log entry for each of the given states.
func withHistory(row *endpointstates.EndpointState, through []state, now time.Time) *endpointstates.EndpointState {
	row = row.Clone()
	for _, s := range through {
		row = row.WithLog(endpointstates.LogEntry{Time: now, State: s, Message: explain(s)})
	}
	return row
}

// retire advances the state of a deleted endpoint, and finally removes it.
func (u *updates) retire(old *endpointstates.EndpointState, gone bool, now time.Time) {
	through := path(old.State, situation{gone: gone})
	if len(through) == 0 {
		if old.State != endpointstates.Disconnecting {
			u.remove = append(u.remove, old)
		}
		return
	}
	row := old.Clone()
	row.Error, row.Waiting = "", ""
	row.State = through[len(through)-1]
	u.insert = append(u.insert, withHistory(row, through, now))
	u.again[old.ID] = true
}

// explain returns the meaning of a state for the endpoint's log.
func explain(s state) string {
	switch s {
	case endpointstates.WaitingForIdentity:
		return "created; its identity and its rows are pending"
	case endpointstates.Restoring:
		return "read from its state file"
	case endpointstates.WaitingToRegenerate:
		return "rows of the datapath are out of date"
	case endpointstates.Regenerating:
		return "rows of the datapath are being written"
	case endpointstates.Ready:
		return "its map entries and programs are in the kernel"
	case endpointstates.Disconnecting:
		return "deleted; its rows are being removed"
	case endpointstates.Disconnected:
		return "all rows of the datapath are removed"
	}
	return ""
}
