package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/agentcall"
	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/rtnl"
)

const (
	// deleteTimeout is how long an agent that answers may take to delete one endpoint.
	deleteTimeout = 30 * time.Second
	// lockTimeout is how long a starting agent may replay the queue before a DEL gives up.
	lockTimeout = 10 * time.Second
	// lockedTimeout bounds the call to the agent while the queue is locked.
	lockedTimeout = time.Second
	// replacedPatience is how long DEL waits for an agent that is being replaced, replacedPause the time between two attempts.
	replacedPatience, replacedPause = 20 * time.Second, 20 * time.Millisecond
)

// del detaches a pod. What is gone already is no error, so a runtime may repeat it.
func (p *plugin) del(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	if failed := checkAttachment(args); failed != nil {
		return failed
	}
	queued, err := p.forget(ctx, conf, args.ContainerID, args.IfName)
	var ns *podNamespace
	if args.Netns != "" {
		if ns, _ = openNamespace(args.Netns); ns != nil { // a namespace that is gone has taken its link with it
			defer ns.Close()
		}
	}
	// The link goes even if the agent failed: a pod that the runtime has given up must not send.
	err = errors.Join(err, detach(args.ContainerID, args.IfName, ns, queued))
	if err != nil {
		return failure(types.ErrTryAgainLater, fmt.Errorf("detach %s %s: %w", args.ContainerID, args.IfName, err),
			"the runtime repeats DEL; see waggle status and the agent's log")
	}
	return nil
}

// forget has the agent delete an endpoint, or leaves that in the deletion queue when there is no agent. It tries again while the agent is being
// replaced: a process that is being killed accepts connections and resets them, and a new one serves only after it has replayed the queue.
func (p *plugin) forget(ctx context.Context, conf *netConf, containerID, ifName string) (queued bool, err error) {
	agent := agentcall.New(conf.SocketPath)
	for begin := time.Now(); ; time.Sleep(replacedPause) {
		err = deleteEndpoint(ctx, agent, containerID, ifName, deleteTimeout)
		if status := agentcall.Status(err); err == nil || status != 0 && status != unavailable || ctx.Err() != nil {
			return false, err
		}
		queued, again, err := p.enqueue(ctx, conf, agent, containerID, ifName)
		if !again || time.Since(begin) > replacedPatience || ctx.Err() != nil {
			return queued, err
		}
	}
}

// enqueue leaves the deletion of an endpoint in the queue, unless an agent answers now or the node has no state of an agent. It holds the queue's lock, for which a starting agent
// waits: the call to the agent must be short. again reports that an agent took the call and did not answer it.
func (p *plugin) enqueue(ctx context.Context, conf *netConf, agent *agentcall.Client, containerID, ifName string) (queued, again bool, err error) {
	lockCtx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	queue, err := deletequeue.Open(lockCtx, conf.queueDir())
	if errors.Is(err, deletequeue.ErrNoState) {
		return true, false, nil // no agent has an endpoint; the caller deletes the link
	}
	if err != nil {
		return false, false, err
	}
	defer queue.Close()
	// An agent that replayed the queue a moment ago listens by now.
	err = deleteEndpoint(ctx, agent, containerID, ifName, lockedTimeout)
	if err == nil || !errors.Is(err, agentcall.ErrUnreachable) && agentcall.Status(err) != unavailable { // it stops
		return false, agentcall.Interrupted(err) || errors.Is(err, context.DeadlineExceeded), err
	}
	// Without the number the entry means what has this name by then, unless that is of a later run and its link is there.
	newest, _ := newestLink(containerID, ifName)
	return true, false, queue.Enqueue(deletequeue.Entry{ContainerID: containerID, IfName: ifName, NewestInterface: newest})
}

// newestLink returns the highest index that a link of the node has; 0 when the attachment's own link is gone, as after an
// ADD that was undone: it may have been the newest.
func newestLink(containerID, ifName string) (index int, err error) {
	host, err := rtnl.Open()
	if err != nil {
		return 0, err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return 0, err
	}
	own := false
	for _, l := range links {
		a := l.Attrs()
		index = max(index, a.Index)
		own = own || a.Group == podlink.Group && isOwn(a.Name, containerID, ifName)
	}
	if !own {
		return 0, nil
	}
	return index, nil
}

func isOwn(name, containerID, ifName string) bool {
	for attempt := range maxAttempts {
		if name == podlink.HostName(containerID, ifName, attempt) {
			return true
		}
	}
	return false
}

// deleteEndpoint treats an endpoint that does not exist as deleted.
func deleteEndpoint(ctx context.Context, agent *agentcall.Client, containerID, ifName string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := agent.DeleteEndpoint(ctx, attachmentID(containerID, ifName))
	switch agentcall.Status(err) {
	case notFound, badRequest: // an id that the agent cannot read is none that it has
		return nil
	}
	return err
}

// detach removes the link of an attachment: its pod's end is put aside, and its host end goes into the group that the agent
// deletes at once with many others. With nobody there to do that (now), the link is deleted here.
func detach(containerID, ifName string, ns *podNamespace, now bool) error {
	host, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	var errs []error
	for attempt := range maxAttempts {
		name := podlink.HostName(containerID, ifName, attempt)
		link, err := findHostLink(host, name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case link == nil || link.group != podlink.Group && link.group != podlink.DeletedGroup:
			// gone, or nobody has proof that it is ours
		case now || link.group == podlink.Group && !link.up():
			// Nobody, or nobody who is told: the kernel does not announce the new group of a link that is down, such as
			// that of an ADD that was killed. Deleting it takes long, but is rare.
			errs = append(errs, deleteLink(host, name))
		case link.group == podlink.Group:
			errs = append(errs, retire(host, link, ns))
		}
	}
	return errors.Join(errs...)
}

// retire takes a link out of use without the long wait of its deletion.
func retire(host *rtnl.Handle, link *hostLink, ns *podNamespace) error {
	silent := false
	if ns != nil {
		var err error
		if silent, err = putAside(ns, link); err != nil {
			return err
		}
	}
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: link.name, Index: link.index}}
	// The group before the state: once the link is down the kernel would not tell the agent of its group.
	if err := host.LinkSetGroup(device, int(podlink.DeletedGroup)); err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("move link %s to the group of deleted links: %w", link.name, err)
	}
	if !silent {
		if err := host.LinkSetDown(device); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("set down link %s: %w", link.name, err)
		}
	}
	return nil
}

// putAside takes the pod's end down, which removes its routes, and gives its name free for another ADD. It reports
// whether the end was found.
func putAside(ns *podNamespace, link *hostLink) (found bool, err error) {
	pod, err := ns.enter()
	if err != nil {
		return false, err
	}
	defer pod.Close()
	end, err := pod.LinkByIndex(link.peer)
	if rtnl.IsGone(err) || err == nil && end.Attrs().ParentIndex != link.index {
		return false, nil // the pod's end is in another namespace
	}
	if err != nil {
		return false, fmt.Errorf("look up the pod's end of %s: %w", link.name, err)
	}
	if err := pod.LinkSetDown(end); err != nil && !rtnl.IsGone(err) {
		return false, fmt.Errorf("set down %s in the pod: %w", end.Attrs().Name, err)
	}
	if err := pod.LinkSetName(end, link.name); err != nil && !rtnl.IsGone(err) {
		return false, fmt.Errorf("rename %s in the pod: %w", end.Attrs().Name, err)
	}
	return true, nil
}
