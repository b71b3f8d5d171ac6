package basedevices

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/watchdog"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// podLinksOwner is the owner of the settings of pod links.
const podLinksOwner = sysctls.OwnerPodLinks

// podLinksInterval is the minimum time between two computations; the first one after a longer time starts at once.
const podLinksInterval = 20 * time.Millisecond

// podLinks disables the reverse path filter of pod links. Packets of a pod arrive at its link, but the route back leads to waggle_host, so a strict default for
// new links would drop them.
type podLinks struct {
	db        *statedb.DB
	endpoints statedb.Table[*endpoints.Endpoint]
	writer    sysctls.Writer

	names map[uint16]string // link name of each endpoint, as passed to the writer
}

func registerPodLinks(jobs job.Group, db *statedb.DB, a agentconfig.Agent, table statedb.Table[*endpoints.Endpoint], w sysctls.Writer) {
	if !a.EnableIPv4 {
		return // IPv6 has no reverse path filter setting
	}
	p := &podLinks{db: db, endpoints: table, writer: w}
	watchdog.Add(jobs, "compute-pod-links", p.run)
}

// run passes the settings of changed endpoints to the writer, so that the cost of an ADD does not depend on the number of endpoints. It passes all settings
// once a minute and after an error.
func (p *podLinks) run(ctx context.Context, health cell.Health) error {
	feed, err := follow(p.db, p.endpoints)
	if err != nil {
		return err
	}
	defer feed.Close()
	var failed error // error of the last round
	options := loop.Options{Tables: []statedb.TableMeta{p.endpoints}, Pause: podLinksInterval, Interval: endpointfeed.FullPassInterval}
	return loop.Run(ctx, p.db, options, func(r *loop.Round) error {
		list := feed.UpTo(r.Txn, r.Changed)
		if r.Full || failed != nil {
			failed = p.replace(r.Txn)
		} else {
			failed = p.update(r.Txn, list)
		}
		if failed != nil {
			health.Degraded("settings of pod links have another owner", failed)
		} else {
			health.OK("desired settings of pod links are up to date")
		}
		return nil
	})
}

// follow subscribes to endpoints. The feed starts with all existing rows.
func follow(db *statedb.DB, table statedb.Table[*endpoints.Endpoint]) (*changefeed.Feed[*endpoints.Endpoint], error) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	feed, err := changefeed.Follow(txn, table)
	if err != nil {
		return nil, fmt.Errorf("follow endpoints: %w", err)
	}
	return feed, nil
}

// replace passes the settings of all links to the writer.
func (p *podLinks) replace(txn statedb.ReadTxn) error {
	p.names = make(map[uint16]string, p.endpoints.NumObjects(txn))
	settings := make([]sysctls.Setting, 0, p.endpoints.NumObjects(txn))
	for ep := range p.endpoints.All(txn) {
		if ep.HostIfName != "" {
			p.names[ep.ID] = ep.HostIfName
			settings = append(settings, settingOf(ep.HostIfName))
		}
	}
	return p.writer.Replace(podLinksOwner, settings)
}

// update passes the settings of changed endpoints to the writer. A change has only the last state of an id, which may already belong to another endpoint, so
// the previous link name is stored in names.
func (p *podLinks) update(txn statedb.ReadTxn, list []statedb.Change[*endpoints.Endpoint]) error {
	var put []sysctls.Setting
	var remove []string
	for _, change := range list {
		ep, before := change.Object, p.names[change.Object.ID]
		now := ep.HostIfName
		if change.Deleted {
			now = ""
		}
		if now == before {
			continue
		}
		delete(p.names, ep.ID)
		if now != "" {
			p.names[ep.ID] = now
			put = append(put, settingOf(now))
		}
		if _, _, used := p.endpoints.Get(txn, endpoints.ByHostInterface(before)); before != "" && !used {
			remove = append(remove, settingOf(before).Name)
		}
	}
	if len(put)+len(remove) == 0 {
		return nil
	}
	return p.writer.Update(podLinksOwner, put, remove)
}

// settingOf returns the setting of a link. It is optional, because the link may already be removed with its pod.
func settingOf(link string) sysctls.Setting {
	return sysctls.Setting{Name: "net/ipv4/conf/" + link + "/rp_filter", Value: "0", Optional: true}
}
