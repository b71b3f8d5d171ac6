package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// TestResponder_StaleRules: a Service with local backends is unhealthy once the datapath has applied no revision of a frontend for external clients for more
// than a minute, independently of changes and failures of the row, and healthy again when the datapath applies it, even if the row lacks a part.
func TestResponder_StaleRules(t *testing.T) {
	t.Parallel()
	at := func(text string) loadbalancer.Address {
		a, err := loadbalancer.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	balanced, inside, lost := at("203.0.113.7:80/TCP"), at("10.96.0.1:80/TCP"), at("203.0.113.8:80/TCP")
	full := reconciler.StatusError(errors.New("full"))
	type change struct {
		after time.Duration
		row   frontends.Frontend
	}
	web := func(a loadbalancer.Address, kind frontends.Kind, status reconciler.Status) frontends.Frontend {
		return frontends.Frontend{Address: a, Kind: kind, Service: "shop/web", Status: status, InForce: status.Kind == reconciler.StatusKindDone}
	}
	short := web(balanced, frontends.LoadBalancer, full)
	short.InForce = true // for example without a Maglev table
	first := web(balanced, frontends.LoadBalancer, reconciler.StatusPending())
	second, third := first, first
	second.Applied, third.Applied = 1, 2
	others := web(lost, frontends.LoadBalancer, full)
	others.Service = "shop/other"
	loopback := web(balanced, frontends.NodePort, full)
	loopback.Loopback = true
	for name, c := range map[string]struct {
		changes []change
		wait    time.Duration // after the last change
		code    int
	}{
		"no frontends":                {nil, time.Hour, 200},
		"in the datapath":             {[]change{{0, web(balanced, frontends.LoadBalancer, reconciler.StatusDone())}}, time.Hour, 200},
		"pending for a moment":        {[]change{{0, web(balanced, frontends.LoadBalancer, reconciler.StatusPending())}}, staleAfter - time.Second, 200},
		"pending for long":            {[]change{{0, web(balanced, frontends.LoadBalancer, reconciler.StatusPending())}}, staleAfter + time.Second, 503},
		"failed for a moment":         {[]change{{0, web(balanced, frontends.LoadBalancer, full)}}, staleAfter - time.Second, 200},
		"failed for long":             {[]change{{0, web(balanced, frontends.NodePort, full)}}, staleAfter + time.Second, 503},
		"in force with a shortage":    {[]change{{0, short}}, time.Hour, 200},
		"always late by one round":    {[]change{{0, first}, {staleAfter - time.Second, second}, {staleAfter - time.Second, third}}, staleAfter - time.Second, 200},
		"no longer followed":          {[]change{{0, first}, {staleAfter - time.Second, second}}, staleAfter + time.Second, 503},
		"changes while it is pending": {[]change{{0, web(balanced, frontends.LoadBalancer, full)}, {staleAfter - time.Second, web(balanced, frontends.LoadBalancer, reconciler.StatusPending())}}, 2 * time.Second, 503},
		"done, and changed again":     {[]change{{0, web(balanced, frontends.LoadBalancer, full)}, {time.Hour, web(balanced, frontends.LoadBalancer, reconciler.StatusDone())}, {time.Hour, web(balanced, frontends.LoadBalancer, reconciler.StatusPending())}}, time.Second, 200},
		"done after long":             {[]change{{0, web(balanced, frontends.LoadBalancer, full)}, {time.Hour, web(balanced, frontends.LoadBalancer, reconciler.StatusDone())}}, time.Second, 200},
		"only the ClusterIP":          {[]change{{0, web(inside, frontends.ClusterIP, full)}}, time.Hour, 200},
		"only the loopback address":   {[]change{{0, loopback}}, time.Hour, 200},
		"an address of another owner": {[]change{{0, others}}, time.Hour, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := statedb.New()
				fronts, err1 := frontends.NewTable(db)
				svcs, err2 := services.NewTable(db)
				ports, err3 := newTable(db)
				if err := errors.Join(err1, err2, err3, db.Start()); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = db.Stop() }()
				txn := db.WriteTxn(svcs, ports)
				_, _, _ = svcs.Insert(txn, &services.Service{Name: "shop/web", HealthCheckNodePort: 30000, LocalReady: 2, Claims: []loadbalancer.Address{inside, balanced, lost}})
				_, _, _ = ports.Insert(txn, &port{Number: 30000, Service: "shop/web"})
				txn.Commit()
				r := newRules(db, fronts)
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				health, _ := cell.NewSimpleHealth()
				go func() { _ = r.run(ctx, health) }()
				for _, change := range c.changes {
					time.Sleep(change.after)
					txn := db.WriteTxn(fronts)
					_, _, _ = fronts.Insert(txn, &change.row)
					txn.Commit()
				}
				time.Sleep(c.wait)
				request := httptest.NewRequestWithContext(context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 30000}),
					http.MethodGet, "/whatever", nil)
				w := httptest.NewRecorder()
				responder{db, ports, svcs, r}.ServeHTTP(w, request)
				healthy := fmt.Sprintf(`"localEndpoints":2,"serviceProxyHealthy":%t}`, c.code == http.StatusOK)
				if w.Code != c.code || !strings.Contains(w.Body.String(), healthy) || w.Header().Get("X-Load-Balancing-Endpoint-Weight") != "2" {
					t.Errorf("got %d %s, weight %s, want %d %s, weight 2", w.Code, w.Body, w.Header().Get("X-Load-Balancing-Endpoint-Weight"), c.code, healthy)
				}
			})
		})
	}
}
