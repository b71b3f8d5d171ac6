package services

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// TestWithHealthCheck_WatchesOnlyServicesWithPort checks that changes of services without a health check port, which are many, do not wake watchers of
// the ports.
func TestWithHealthCheck_WatchesOnlyServicesWithPort(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewTable(db)
	require.NoError(t, err)
	insert := func(s *Service) {
		txn := db.WriteTxn(table)
		defer txn.Commit()
		_, _, err := table.Insert(txn, s)
		require.NoError(t, err)
	}
	for _, step := range []struct {
		name  string
		row   *Service
		wakes bool
		want  []string
	}{
		{"none has a port", &Service{Name: "a/a"}, false, nil},
		{"the first with a port", &Service{Name: "a/c", HealthCheckNodePort: 30001}, true, []string{"a/c"}},
		{"another without one", &Service{Name: "a/d"}, false, []string{"a/c"}},
		{"one without a port changes", &Service{Name: "a/a", LocalReady: 3}, false, []string{"a/c"}},
		{"a second one, sorted", &Service{Name: "a/b", HealthCheckNodePort: 30001}, true, []string{"a/b", "a/c"}},
		{"one with a port changes", &Service{Name: "a/c", HealthCheckNodePort: 30001, LocalReady: 1}, true, []string{"a/b", "a/c"}},
		{"a port goes", &Service{Name: "a/b"}, true, []string{"a/c"}},
	} {
		_, changed := table.ListWatch(db.ReadTxn(), WithHealthCheck)
		insert(step.row)
		woken := false
		select {
		case <-changed:
			woken = true
		default:
		}
		require.Equal(t, step.wakes, woken, step.name)
		var names []string
		for s := range table.List(db.ReadTxn(), WithHealthCheck) {
			names = append(names, s.Name)
		}
		require.Equal(t, step.want, names, step.name)
	}
}
