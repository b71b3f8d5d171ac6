package identity

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// BenchmarkPass is what one ADD costs on a node with 250 pods of 50 label sets.
func BenchmarkPass(b *testing.B) {
	db := statedb.New()
	eps, err1 := endpoints.NewTable(db)
	crds, err2 := cilium.NewIdentityTable(db)
	servers, err3 := apiservers.NewTable(db)
	rows, err4 := newWantedTable(db)
	known, of, done, err5 := newTables(db)
	filter, err6 := labels.NewFilter(nil, nil)
	for _, err := range []error{err1, err2, err3, err4, err5, err6} {
		require.NoError(b, err)
	}
	c := newController(params{Config: DefaultConfig, Log: slog.New(slog.DiscardHandler), DB: db, Settings: settings.Agent{StateDir: b.TempDir()},
		Filter: filter, Endpoints: eps, CRDs: crds, Servers: servers, Wanted: rows, Identities: known, Of: of, Done: done})
	require.NoError(b, c.numbers.load(c.Log))
	require.NoError(b, c.subscribe())
	insert := func(id int) {
		txn := db.WriteTxn(eps)
		defer txn.Commit()
		_, _, err := eps.Insert(txn, &endpoints.Endpoint{ID: uint16(id), ContainerID: fmt.Sprint(id), IfName: "eth0",
			CreatedAt: time.Now(), Labels: map[string]string{"k8s:app": fmt.Sprint(id % 50), "k8s:io.kubernetes.pod.namespace": "default",
				"k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.cilium.k8s.policy.serviceaccount": "default",
				"k8s:pod-template-hash": "x", "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "default"}})
		require.NoError(b, err)
	}
	pass := func() {
		txn := db.ReadTxn()
		in := c.read(txn)
		out := c.resolve(txn, in, time.Now())
		require.NoError(b, c.numbers.save())
		require.NoError(b, c.commit(txn, in, out))
	}
	for id := range 250 {
		insert(id + 1)
	}
	pass()
	for b.Loop() {
		insert(251)
		pass()
	}
	require.Equal(b, 251, of.NumObjects(db.ReadTxn()))
}
