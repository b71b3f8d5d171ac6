package clusterhealthz

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

func lives(context.Context) (string, bool) { return "", true }

// The second replica on a node waits for the port while the first one answers for both, and listens when the first one ends.
func TestPort_UsedByOtherReplica_Waits(t *testing.T) {
	t.Parallel()
	first := httptest.NewServer(newHandler(inputs{DB: statedb.New(), Monitor: watchdog.NewMonitor()}))
	defer first.Close()
	second := &port{address: first.Listener.Addr().String(), pause: time.Millisecond, live: lives}
	require.NoError(t, second.open(t.Context()))
	require.Nil(t, second.listener)

	health, _ := cell.NewSimpleHealth()
	done := make(chan error, 1)
	go func() { done <- second.wait(t.Context(), health) }()
	first.Close()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the second replica has not got the port")
	}
	require.NotNil(t, second.listener)
	require.NoError(t, second.listener.Close())
}

// A port of another program is an error that names the flag.
func TestPort_UsedByOtherProgram_Fails(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	err := (&port{address: other.Listener.Addr().String(), pause: time.Millisecond, live: lives}).open(t.Context())
	require.ErrorContains(t, err, "--operator-api-serve-addr")
	require.ErrorContains(t, err, "address already in use")
}

// No probe reaches a replica without the port, so it ends by itself when it hangs.
func TestPort_StalledReplicaWithoutPort_Exits(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	asked := 0
	p := &port{address: l.Addr().String(), pause: time.Millisecond, live: func(context.Context) (string, bool) {
		asked++
		return "loop policystatus hangs", asked == 10 // responsive once, which restarts the count
	}}
	health, _ := cell.NewSimpleHealth()
	err = p.wait(t.Context(), health)
	require.True(t, err != nil && strings.Contains(err.Error(), "loop policystatus hangs"), "%v", err)
	require.Equal(t, 10+mostHangs, asked)
}
