package linkreaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// collector deletes host ends that belong to no endpoint: a plugin or an agent was killed during an ADD or a DEL, and the runtime did not repeat the request.
// No packet passes such links, but each occupies a name and kernel memory.
type collector struct {
	log       *slog.Logger
	db        *statedb.DB
	devices   statedb.Table[*devices.Device]
	endpoints statedb.Table[*endpoints.Endpoint]
	kernel    kernel

	suspects map[int]suspect // by index, as of the last scan
	looked   bool            // a scan ran after all inputs were known
	spared   map[int]string  // by index, see orphans
	deleted  int
}

// scans is the number of scans in a row that must find a link before it is deleted. An ADD creates its endpoint milliseconds after its link. An ADD whose
// request waits for others gives up after [agentclient.RequestTimeout], which is shorter than this number of scans.
const scans = 5

// suspect is a link without an endpoint.
type suspect struct {
	name  string
	found int
}

func registerCollector(
	jobs job.Group, config Config, log *slog.Logger, db *statedb.DB,
	links statedb.Table[*devices.Device], eps statedb.Table[*endpoints.Endpoint], k kernel,
) error {
	if err := config.validate(); err != nil || config.Interval == 0 {
		return err
	}
	c := &collector{log: log, db: db, devices: links, endpoints: eps, kernel: k}
	watchdog.Add(jobs, "collect-links", func(ctx context.Context, health cell.Health) error {
		c.run(ctx, health, config.Interval)
		return nil
	})
	return nil
}

func (c *collector) run(ctx context.Context, health cell.Health, interval time.Duration) {
	for watchdog.Sleep(ctx, interval) == nil {
		if err := c.collect(); err != nil {
			health.Degraded("links of pods belong to no endpoint", err)
			continue
		}
		health.OK(fmt.Sprintf("%d links belonged to no endpoint and were deleted", c.deleted))
	}
}

// errUnknownLink prevents all deletions: any stray link may be the link of that endpoint.
var errUnknownLink = errors.New("the link of an endpoint in quarantine is unknown: delete the endpoint when its pod is gone")

// collect runs one scan.
func (c *collector) collect() error {
	txn := c.db.ReadTxn()
	if !c.known(txn) {
		return nil
	}
	stray, err := c.stray(txn)
	if err != nil {
		c.suspects = nil
		return err
	}
	errs := []error{c.spareOrphans(txn, stray)}
	suspects := make(map[int]suspect, len(stray))
	for index, name := range stray {
		found := 1
		if s := c.suspects[index]; s.name == name {
			found += s.found
		}
		if found >= scans {
			err := c.kernel.DeleteLink(index)
			if err == nil {
				c.deleted++
				c.log.Warn("Deleted the link of a pod because it belongs to no endpoint", "link", name)
				continue
			}
			errs = append(errs, fmt.Errorf("delete link %s: %w", name, err))
		}
		suspects[index] = suspect{name, found}
	}
	c.suspects = suspects
	return errors.Join(errs...)
}

// known reports whether the tables of links and endpoints are initialized. Otherwise no link can be evaluated.
func (c *collector) known(txn statedb.ReadTxn) bool {
	links, _ := c.devices.Initialized(txn)
	eps, _ := c.endpoints.Initialized(txn)
	return links && eps
}

// stray returns the links with the group and the name of a pod's link that no endpoint has.
func (c *collector) stray(txn statedb.ReadTxn) (map[int]string, error) {
	stray := map[int]string{}
	for d := range c.devices.All(txn) {
		if d.Group == podlink.Group && d.Type == "veth" && podlink.IsHostName(d.Name) {
			stray[d.Index] = d.Name
		}
	}
	if len(stray) == 0 {
		return nil, nil
	}
	byName := make(map[string]int, len(stray))
	for index, name := range stray {
		byName[name] = index
	}
	for ep := range c.endpoints.All(txn) {
		delete(stray, ep.HostIfIndex)
		if index, found := byName[ep.HostIfName]; found {
			delete(stray, index)
		}
		if len(stray) > 0 && ep.HostIfIndex == 0 && ep.HostIfName == "" {
			return nil, fmt.Errorf("endpoint %d (%s): %w", ep.ID, ep.AttachmentID(), errUnknownLink)
		}
	}
	return stray, nil
}
