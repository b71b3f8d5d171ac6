package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

func TestCreate_StoresRowFileAndClaims(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	require.Equal(t, uint16(1), ep.ID)
	require.Equal(t, []string{"1.json"}, r.fileNames(t))
	require.Equal(t, "container-1:eth0", r.addresses.ownerOf("10.0.0.1"))
	require.Equal(t, "container-1:eth0", r.addresses.ownerOf("fd00::1"))
	n, err := r.DeleteContainer(t.Context(), "container-1")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	r.requireEmpty(t)
	n, err = r.DeleteContainer(t.Context(), "container-1")
	require.NoError(t, err, "deleting again is no error")
	require.Zero(t, n)
}

// TestCreate_HalfClosedClient_GetsReply: the server cancels the context of a client that closes its sending side.
func TestCreate_HalfClosedClient_GetsReply(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // a select with two ready cases picks a random one
		_, err := r.Create(ctx, request(1))
		require.ErrorIs(t, err, endpoint.ErrExists)
	}
}

func TestCreate_Conflict_NamesBothAndKeepsFirst(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	first, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	for what, change := range map[string]func(*endpoint.Request){
		"the attachment":           func(q *endpoint.Request) { q.ContainerID = "container-1" },
		"interface " + hostName(1): func(q *endpoint.Request) { q.HostIfName = hostName(1) },
		"address 10.0.0.1":         func(q *endpoint.Request) { q.IPv4 = first.IPv4 },
		"address fd00::1":          func(q *endpoint.Request) { q.IPv6 = first.IPv6 },
	} {
		q := request(2)
		change(&q)
		_, err := r.Create(t.Context(), q)
		require.ErrorIs(t, err, endpoint.ErrExists, what)
		require.ErrorContains(t, err, what+" belongs to endpoint 1 (container-1:eth0, pod default/pod-1)")
		require.ErrorContains(t, err, "create endpoint "+q.ContainerID+":eth0")
		require.Equal(t, []*endpoints.Endpoint{first}, r.rows())
		require.Equal(t, 2, r.addresses.count())
		require.Zero(t, r.addresses.released)
	}
}

func TestCreate_ClaimRejected_LeavesNothing(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	q := request(1)
	r.addresses.rejected[q.IPv6] = true
	_, err := r.Create(t.Context(), q)
	require.ErrorIs(t, err, ipam.ErrTaken)
	r.requireEmpty(t)
}

func TestCreate_InvalidRequest_RejectedWithoutSideEffects(t *testing.T) {
	t.Parallel()
	r := newRig(t, t.TempDir()) // not started: validation does not wait
	q := request(1)
	q.HostIfName = "../etc"
	_, err := r.Create(t.Context(), q)
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

func TestCreate_FileNotWritable_IsUndone(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	require.NoError(t, os.MkdirAll(filepath.Join(r.files.Dir(), "1.json", "x"), 0o700))
	_, err := r.Create(t.Context(), request(1))
	require.ErrorContains(t, err, "1.json")
	require.Empty(t, r.rows())
	require.Zero(t, r.addresses.count())
}

func TestCreate_WaitsForRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t, t.TempDir())
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client went away"))
	_, err := r.Create(ctx, request(1))
	require.ErrorContains(t, err, "the client went away")
	_, err = r.DeleteContainer(ctx, "x")
	require.ErrorContains(t, err, "the client went away")
	require.ErrorContains(t, r.Delete(ctx, "1"), "the client went away")
}

// TestCreate_BeforeRestore_StoresBootID: without the boot id in the row, a reboot would not prove that the pod has ended.
func TestCreate_BeforeRestore_StoresBootID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, t.TempDir())
		r.kernel = &fakeKernel{names: allLinks(), run: "this-boot"}
		made := make(chan error, 1)
		go func() {
			_, err := r.Create(t.Context(), request(1))
			made <- err
		}()
		synctest.Wait()
		require.NoError(t, r.restore(r.done))
		require.NoError(t, <-made)
		require.Equal(t, "this-boot", r.rows()[0].Boot)
	})
}

func TestCreate_SecondSandboxOfAPodOverlaps(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	q := request(2)
	q.K8sPodName = "pod-1"
	second, err := r.Create(t.Context(), q)
	require.NoError(t, err)
	found, err := r.Lookup("pod-name:default/pod-1")
	require.NoError(t, err)
	require.Equal(t, second, found, "the newest sandbox is the pod's")
	_, err = r.DeleteContainer(t.Context(), "container-1")
	require.NoError(t, err)
	require.Equal(t, []*endpoints.Endpoint{second}, r.rows(), "a late DEL of the old sandbox spares the new one")
}

func TestCreate_WaitReturnsWhenReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, t.TempDir())
		r.setState(t, &endpointstates.EndpointState{ID: 1, Attachment: "an-earlier-one:eth0", State: endpointstates.Ready})
		q := request(1)
		q.Wait = true
		var finished atomic.Bool
		go func() {
			_, err := r.Create(t.Context(), q)
			if err != nil {
				t.Error(err)
			}
			finished.Store(true)
		}()
		synctest.Wait()
		require.False(t, finished.Load())
		r.setState(t, &endpointstates.EndpointState{ID: 2, Attachment: "container-1:eth0",
			State: endpointstates.WaitingForIdentity})
		synctest.Wait()
		require.False(t, finished.Load())
		r.setState(t, &endpointstates.EndpointState{ID: 2, Attachment: "container-1:eth0", State: endpointstates.Ready})
		synctest.Wait()
		require.True(t, finished.Load())
	})
}

func TestCreate_WaitTimeout_ReportsCauseAndUndoes(t *testing.T) {
	t.Parallel()
	for want, state := range map[string]*endpointstates.EndpointState{
		"no controller has processed the endpoint": nil,
		"bpf-links of x: map is full":              {ID: 1, Attachment: "container-1:eth0", Error: "bpf-links of x: map is full"},
		"waiting for a row in endpoint-facts": {ID: 1, Attachment: "container-1:eth0",
			State: endpointstates.WaitingForIdentity, Waiting: "a row in endpoint-facts"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := started(t, t.TempDir())
			q := request(1)
			q.Wait = true
			begin := time.Now()
			go func() {
				time.Sleep(time.Second)
				if state != nil {
					r.setState(t, state)
				}
			}()
			_, err := r.Create(t.Context(), q)
			require.Equal(t, readyTimeout, time.Since(begin))
			require.ErrorIs(t, err, endpoint.ErrNotReady)
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "gave up after 30s")
			r.requireEmpty(t)
		})
	}
}

func TestCreate_DeletedWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, t.TempDir())
		q := request(1)
		q.Wait = true
		result := make(chan error, 1)
		go func() {
			_, err := r.Create(t.Context(), q)
			result <- err
		}()
		synctest.Wait()
		require.NoError(t, r.Delete(t.Context(), "cni-attachment-id:container-1:eth0"))
		err := <-result
		require.ErrorIs(t, err, endpoint.ErrNotReady)
		require.ErrorContains(t, err, "deleted by another request")
		r.requireEmpty(t)
	})
}

func TestNextID_FreedID_IsReusedLast(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	for n := 1; n <= 5; n++ {
		ep, err := r.Create(t.Context(), request(n))
		require.NoError(t, err)
		require.Equal(t, uint16(n), ep.ID)
		require.NoError(t, r.Delete(t.Context(), fmt.Sprint(n)))
	}
	r.lastID = maxID
	r.setState(t, &endpointstates.EndpointState{ID: 1, State: endpointstates.Disconnecting})
	ep, err := r.Create(t.Context(), request(6))
	require.NoError(t, err)
	require.Equal(t, uint16(2), ep.ID, "it starts again from 1, whose state lingers")
}

func TestNextID_Full(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	txn := r.db.WriteTxn(r.endpoints)
	for id := uint16(1); id <= maxID; id++ {
		_, _, err := r.endpoints.Insert(txn, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(id)})
		require.NoError(t, err)
	}
	txn.Commit()
	_, err := r.Create(t.Context(), request(1))
	require.ErrorIs(t, err, endpoint.ErrFull)
	require.Zero(t, r.addresses.count())
}

func TestLookup_ByEachPrefix(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	for _, id := range []string{"1", "cilium-local:1", "cni-attachment-id:container-1:eth0", "cni-attachment-id:container-1",
		"container-id:container-1", "pod-name:default/pod-1", "pod-name:default:pod-1", "cep-name:default/pod-1",
		"ipv4:10.0.0.1", "ipv6:fd00::1"} {
		found, err := r.Lookup(id)
		require.NoError(t, err, id)
		require.Equal(t, ep, found, id)
	}
	for _, id := range []string{"2", "cilium-local:65535", "container-id:container", "cni-attachment-id:container-1:eth1",
		"pod-name:default/pod", "ipv4:10.0.0.2"} {
		_, err := r.Lookup(id)
		require.ErrorIs(t, err, endpoint.ErrNotFound, id)
	}
	_, err = r.Lookup("cilium-global:c:n:1")
	require.ErrorIs(t, err, endpoint.ErrUnsupported)
	require.ErrorIs(t, r.Delete(t.Context(), "nonsense:1"), endpoint.ErrInvalid)
	require.ErrorIs(t, r.Delete(t.Context(), "7"), endpoint.ErrNotFound)
}

func TestCreate_ConcurrentSameAttachment_OneSucceeds(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	var won atomic.Int32
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			q := request(n + 1)
			q.ContainerID = "the-one"
			_, err := r.Create(t.Context(), q)
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, endpoint.ErrExists) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, int32(1), won.Load())
	require.Len(t, r.rows(), 1)
	require.Len(t, r.fileNames(t), 1)
	require.Equal(t, 2, r.addresses.count())
}

// A hundred concurrent creates with wait and deletes, and one goroutine that plays the datapath.
func TestCreateAndDelete_InParallelLeaveNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r := started(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	var datapath sync.WaitGroup
	datapath.Go(func() { playDatapath(ctx, t, r) })
	var all sync.WaitGroup
	for n := range 100 {
		all.Go(func() {
			q := request(n + 1)
			q.Wait = true
			if _, err := r.Create(ctx, q); err != nil {
				t.Error(err)
			}
			if _, err := r.DeleteContainer(ctx, q.ContainerID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	cancel()
	datapath.Wait()
	r.requireEmpty(t)
	require.Equal(t, 200, r.addresses.released)
}

// playDatapath sets every endpoint to ready and removes the states of deleted ones.
func playDatapath(ctx context.Context, t *testing.T, r *rig) {
	for {
		txn := r.db.ReadTxn()
		_, changed := r.endpoints.AllWatch(txn)
		for ep := range r.endpoints.All(txn) {
			if _, _, known := r.states.Get(txn, endpointstates.ByID(ep.ID)); !known {
				r.setState(t, &endpointstates.EndpointState{ID: ep.ID, Attachment: ep.AttachmentID(),
					State: endpointstates.Ready})
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// readyMeanwhile is a table of states in which an endpoint becomes ready right after it was read.
type readyMeanwhile struct {
	statedb.Table[*endpointstates.EndpointState]
	happens func()
}

func (s readyMeanwhile) GetWatch(txn statedb.ReadTxn, q statedb.Query[*endpointstates.EndpointState]) (
	state *endpointstates.EndpointState, rev statedb.Revision, changed <-chan struct{}, found bool,
) {
	state, rev, changed, found = s.Table.GetWatch(txn, q)
	s.happens()
	return state, rev, changed, found
}

// TestWaitReady_ReadyAtDeadline_Succeeds: a select with two ready cases picks a random one.
func TestWaitReady_ReadyAtDeadline_Succeeds(t *testing.T) {
	t.Parallel()
	for range 50 {
		r := started(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		r.manager.states = readyMeanwhile{r.states, sync.OnceFunc(func() {
			r.setState(t, &endpointstates.EndpointState{ID: 1, Attachment: "container-1:eth0", State: endpointstates.Ready})
			cancel()
		})}
		q := request(1)
		q.Wait = true
		_, err := r.Create(ctx, q)
		require.NoError(t, err)
		require.Len(t, r.rows(), 1)
	}
}
