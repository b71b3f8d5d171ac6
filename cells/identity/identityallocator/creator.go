package identityallocator

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	createTimeout  = 5 * time.Second
	createAttempts = 5 // numbers to try before the row waits for its retry
	createWorkers  = 8
	createRate     = 20 // objects per second; a pod waits at most Config.Grace for its object
	createBurst    = 40
)

// creator creates a CiliumIdentity for each row.
type creator struct {
	client  *kubeapi.Client
	crds    statedb.Table[*cilium.Identity]
	limiter *rate.Limiter

	// tried stores the number of a request with an unknown outcome. The request may have succeeded without a reply, and another number would create a second
	// object.
	mu    sync.Mutex
	tried map[string]uint32
	full  full
}

func newCreator(client *kubeapi.Client, crds statedb.Table[*cilium.Identity]) *creator {
	return &creator{client: client, crds: crds, limiter: rate.NewLimiter(createRate, createBurst), tried: map[string]uint32{}}
}

// UpdateBatch implements reconciler.BatchOperations. Requests run concurrently, so one slow reply does not delay the others.
func (c *creator) UpdateBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*wanted]) {
	var group errgroup.Group
	group.SetLimit(createWorkers)
	for i := range batch {
		group.Go(func() error {
			batch[i].Result = c.Update(ctx, txn, batch[i].Revision, batch[i].Object)
			return nil
		})
	}
	_ = group.Wait() // the results are in the entries
}

// Update implements reconciler.Operations.
func (c *creator) Update(ctx context.Context, txn statedb.ReadTxn, _ statedb.Revision, w *wanted) error {
	if row, found := lowest(txn, c.crds, w.key()); found {
		w.ID = row.ID
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	w.Full = ""
	id := c.first(w)
	for range createAttempts {
		if id == 0 {
			id = c.free(txn)
		}
		if id == 0 {
			w.Full = fmt.Sprintf("all numbers of %d to %d are taken: %s", identity.ClusterMin, identity.ClusterMax, c.why(txn))
			return fmt.Errorf("create an identity for %s: %s", w.name(), w.Full)
		}
		got, err := c.create(ctx, id, w)
		if err != nil {
			return err
		}
		if got {
			w.ID = id
			return nil
		}
		id = 0
	}
	return fmt.Errorf("create an identity for %s: %d numbers in a row were taken by other nodes", w.name(), createAttempts)
}

// first returns the first number to try: the number of a request without a reply, of the row's object, or of the endpoints; 0 without one.
func (c *creator) first(w *wanted) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range []uint32{c.tried[w.key()], w.ID, w.Prefer} {
		if id != 0 {
			return id
		}
	}
	return 0
}

func (c *creator) remember(key string, id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == 0 {
		delete(c.tried, key)
		return
	}
	c.tried[key] = id
}

// create tries one number, and reports whether an object assigns it to the labels of w now.
func (c *creator) create(ctx context.Context, id uint32, w *wanted) (bool, error) {
	if err := c.limiter.Wait(ctx); err != nil {
		return false, fmt.Errorf("create identity %d: too many are created at once: %w", id, err)
	}
	c.remember(w.key(), id)
	watchdog.Busy(ctx) // each request may take a long time
	err := c.client.Create(ctx, kubeapi.CiliumIdentities, "", object(id, w.Labels), nil)
	if err == nil {
		c.remember(w.key(), 0)
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
		return false, err
	}
	var other ciliumv2.CiliumIdentity
	err = c.client.Get(ctx, kubeapi.CiliumIdentities, "", strconv.FormatUint(uint64(id), 10), &other)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	c.remember(w.key(), 0)
	return err == nil && maps.Equal(other.SecurityLabels, w.Labels), nil
}

// full records that no number was free, and why: thousands of label sets may request one at the same time.
type full struct {
	at  statedb.Revision // revision of cilium-identities; 0 when a number was free
	why string
	as  time.Time // time at which why was computed
}

// recount is the maximum age of the labels that full.why names.
const recount = time.Minute

// free returns a random number without a known object, or 0. If two nodes choose the same number, one request fails and is repeated with another number.
func (c *creator) free(txn statedb.ReadTxn) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	revision := c.crds.Revision(txn)
	if c.full.at == revision && revision != 0 {
		return 0
	}
	size := identity.ClusterMax - identity.ClusterMin + 1
	start := rand.Uint32N(size)
	for i := range size {
		id := identity.ClusterMin + (start+i)%size
		if _, _, taken := c.crds.Get(txn, cilium.IdentityByName(decimal(id))); !taken {
			c.full.at = 0
			return id
		}
	}
	c.full.at = revision
	return 0
}

// why names the labels that cause so many identities.
func (c *creator) why(txn statedb.ReadTxn) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full.why == "" || time.Since(c.full.as) > recount {
		c.full.why, c.full.as = labels.Culprits(labelsOf(c.crds.All(txn))), time.Now()
	}
	return c.full.why
}

// labelsOf yields the labels of objects with a number of the cluster.
func labelsOf(rows iter.Seq2[*cilium.Identity, statedb.Revision]) iter.Seq[map[string]string] {
	return func(yield func(map[string]string) bool) {
		for row := range rows {
			if inRange(row) && !yield(row.Labels) {
				return
			}
		}
	}
}

// Delete implements reconciler.Operations. The object stays, because other nodes may use its number.
func (c *creator) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, w *wanted) error {
	c.remember(w.key(), 0)
	return nil
}

// DeleteBatch implements reconciler.BatchOperations.
func (c *creator) DeleteBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*wanted]) {
	for i := range batch {
		batch[i].Result = c.Delete(ctx, txn, batch[i].Revision, batch[i].Object)
	}
}

// Prune implements reconciler.Operations. It does nothing, because the objects are shared with other nodes.
func (*creator) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*wanted, statedb.Revision]) error {
	return nil
}

// object returns a CiliumIdentity. Its Kubernetes labels are for selectors of users and tools: as in Cilium, they are the labels of the source k8s that are
// valid labels of an object, without labels of the namespace.
func object(id uint32, security map[string]string) *ciliumv2.CiliumIdentity {
	meta := map[string]string{}
	for label, value := range security {
		source, key, _ := strings.Cut(label, ":")
		if source != labels.SourceK8s || strings.HasPrefix(key, labels.KeyNamespaceLabels) ||
			len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			continue
		}
		meta[key] = value
	}
	meta[ciliumv2.ManagedByLabel] = ciliumv2.ManagedByUs
	return &ciliumv2.CiliumIdentity{
		TypeMeta:       metav1.TypeMeta{APIVersion: ciliumv2.GroupVersion.String(), Kind: "CiliumIdentity"},
		ObjectMeta:     metav1.ObjectMeta{Name: strconv.FormatUint(uint64(id), 10), Labels: meta},
		SecurityLabels: security,
	}
}

// lowest returns the valid identity of a label set with the lowest number. All nodes use it if there are several.
func lowest(txn statedb.ReadTxn, table statedb.Table[*cilium.Identity], key string) (best *cilium.Identity, found bool) {
	for row := range table.List(txn, cilium.IdentityByLabels(key)) {
		if valid(row) && (best == nil || row.ID < best.ID) {
			best = row
		}
	}
	return best, best != nil
}

// inRange reports whether the number of an object is in the range of the cluster.
func inRange(row *cilium.Identity) bool {
	return row.ID >= identity.ClusterMin && row.ID <= identity.ClusterMax
}

// valid reports whether an object is a usable identity. An object must not assign a reserved number, or a number to labels that no pod can have: reserved
// labels, and labels whose key would parse as other labels.
func valid(row *cilium.Identity) bool {
	if !inRange(row) || len(row.Labels) == 0 {
		return false
	}
	list := make([]string, 0, len(row.Labels))
	for key, value := range row.Labels {
		list = append(list, key+"="+value)
	}
	labels, err := labels.Parse(list)
	return err == nil && maps.Equal(labels, row.Labels)
}
