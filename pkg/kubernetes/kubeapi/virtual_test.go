package kubeapi_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// virtual runs test in a synctest bubble, with two servers with TLS and the same objects and a client of both. prepare runs on the first server before
// the client starts.
func virtual(t *testing.T, test func(t *testing.T, a, b *kubetest.Server, client *kubeapi.Client), prepare ...func(a *kubetest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		authority := kubetest.NewAuthority(t)
		a := kubetest.New(t, kubetest.InMemory(), kubetest.WithTLS(authority))
		b := a.Replica(t, kubetest.WithTLS(authority))
		client := newClient(t, a.Config(), a.URL(), b.URL())
		for _, f := range prepare {
			f(a)
		}
		background(t, func(ctx context.Context) { _ = client.Run(ctx) })
		test(t, a, b, client)
	})
}

// soon waits at most a minute for a condition and returns the elapsed time.
func soon(condition func() bool) time.Duration {
	began := time.Now()
	for !condition() && time.Since(began) < time.Minute {
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// TestFailover_HostWithoutPower_NextServerAnswersAfterFiveSeconds: a host without power rejects no connection, so the next server is tried after the
// connection timeout.
func TestFailover_HostWithoutPower_NextServerAnswersAfterFiveSeconds(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, _, b *kubetest.Server, client *kubeapi.Client) {
		began := time.Now()
		if err := get(t, client, "one"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 5*time.Second || !rows(client)[b.URL()].Active {
			t.Errorf("answered after %v, want 5s; %+v", took, rows(client))
		}
	}, func(a *kubetest.Server) { a.Put(node("one")); a.Freeze() })
}

// TestFailover_ServerStopped_NextServerAnswersAtOnce: a stopped server rejects connections, and the request is sent to the next one immediately.
func TestFailover_ServerStopped_NextServerAnswersAtOnce(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, b *kubetest.Server, client *kubeapi.Client) {
		a.Put(node("one"))
		if err := get(t, client, "one"); err != nil {
			t.Fatal(err)
		}
		a.Stop()
		began := time.Now()
		if err := get(t, client, "one"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 || !rows(client)[b.URL()].Active {
			t.Errorf("answered after %v, want 0s; %+v", took, rows(client))
		}
	})
}

// TestDeadConnection_IsFoundIn15Seconds: the unanswered ping detects an open but dead connection after 15 s, KeepAlive of idle time and half of it for
// the reply. The next connection to that host times out after 5 s, then the other server is tried.
func TestDeadConnection_IsFoundIn15Seconds(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, b *kubetest.Server, client *kubeapi.Client) {
		store := reflector(t, client)
		a.Put(node("one"))
		soon(holds(store, "one"))
		time.Sleep(3 * time.Minute) // pings are answered
		if row := rows(client)[a.URL()]; !row.Active || !row.Well() {
			t.Errorf("a server that answers is left: %+v", row)
		}
		a.Freeze()
		a.Put(node("two"))
		if took := soon(holds(store, "two")); took < 20*time.Second || took > 20100*time.Millisecond {
			t.Errorf("a change came through the other address after %v, want 20s and a pause of the reflector", took)
		}
		if !rows(client)[b.URL()].Active {
			t.Errorf("%+v", rows(client))
		}
	})
}

// TestRun_AfterOutage_ServerHealthyWithinThreeSeconds: all servers are unreachable for ten minutes. The first recovered server is found by the next
// probe, at most three seconds later.
func TestRun_AfterOutage_ServerHealthyWithinThreeSeconds(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, b *kubetest.Server, client *kubeapi.Client) {
		soon(func() bool { row := rows(client)[a.URL()]; return row.Well() })
		a.Stop()
		b.Stop()
		if get(t, client, "one") == nil {
			t.Fatal("a server that has stopped answers")
		}
		time.Sleep(10 * time.Minute)
		b.Start(t)
		if took := soon(func() bool { row := rows(client)[b.URL()]; return row.Active && row.Well() }); took > 6*time.Second {
			t.Errorf("the server that is back is well after %v, want 6s at most: two questions, since the other is asked in turn", took)
		}
	})
}
