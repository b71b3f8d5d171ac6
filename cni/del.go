package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/podlink"
)

const (
	// deleteTimeout is the timeout of a reachable agent for the deletion of one endpoint.
	deleteTimeout = 30 * time.Second
	// lockTimeout is the time for which a DEL waits while a starting agent replays the queue.
	lockTimeout = 10 * time.Second
	// lockedTimeout is the timeout of the call to the agent while the queue is locked.
	lockedTimeout = time.Second
	// replacedTimeout is the time for which DEL waits for an agent that is being replaced, replacedPause the time between two attempts.
	replacedTimeout, replacedPause = 20 * time.Second, 20 * time.Millisecond
)

// del detaches a pod. Missing resources are no error, so a runtime may repeat the call.
func (p *plugin) del(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	if failed := checkAttachment(args); failed != nil {
		return failed
	}
	queued, err := p.forget(ctx, conf, args.ContainerID, args.IfName)
	var ns *podNamespace
	if args.Netns != "" {
		if ns, _ = openNamespace(args.Netns); ns != nil { // a deleted namespace has removed its end of the link
			defer ns.Close()
		}
	}
	// The link is removed even if the agent failed: a pod that the runtime has given up must not send.
	err = errors.Join(err, detach(args.ContainerID, args.IfName, ns, queued))
	if err != nil {
		return failure(types.ErrTryAgainLater, fmt.Errorf("detach %s %s: %w", args.ContainerID, args.IfName, err),
			"the runtime repeats DEL; see waggle status and the agent's log")
	}
	return nil
}

// forget makes the agent delete an endpoint, or queues the deletion if no agent runs. It retries while the agent is being replaced: a process that is being
// killed accepts connections and resets them, and a new agent serves only after it has replayed the queue.
func (p *plugin) forget(ctx context.Context, conf *netConf, containerID, ifName string) (queued bool, err error) {
	agent := agentclient.New(conf.SocketPath)
	for begin := time.Now(); ; time.Sleep(replacedPause) {
		err = deleteEndpoint(ctx, agent, containerID, ifName, deleteTimeout)
		if status := agentclient.Status(err); err == nil || status != 0 && status != unavailable || ctx.Err() != nil {
			return false, err
		}
		queued, again, err := p.enqueue(ctx, conf, agent, containerID, ifName)
		if !again || time.Since(begin) > replacedTimeout || ctx.Err() != nil {
			return queued, err
		}
	}
}

// enqueue adds the deletion of an endpoint to the queue, unless an agent answers now or the node has no state of an agent. It holds the queue's lock, for
// which a starting agent waits, so the call to the agent must be short. The result again reports that an agent accepted the call without an answer.
func (p *plugin) enqueue(ctx context.Context, conf *netConf, agent *agentclient.Client, containerID, ifName string) (queued, again bool, err error) {
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
	// An agent that has just replayed the queue is already listening.
	err = deleteEndpoint(ctx, agent, containerID, ifName, lockedTimeout)
	if err == nil || !errors.Is(err, agentclient.ErrUnreachable) && agentclient.Status(err) != unavailable { // an unavailable agent is stopping
		return false, agentclient.Interrupted(err) || errors.Is(err, context.DeadlineExceeded), err
	}
	// An entry without the index applies to any later endpoint of this id, unless the endpoint is from a later run and its link exists.
	newest, _ := newestLink(containerID, ifName)
	return true, false, queue.Enqueue(deletequeue.Entry{ContainerID: containerID, IfName: ifName, NewestInterface: newest})
}

// newestLink returns the highest index of the node's links. It returns 0 if the attachment's own link is missing, as after an ADD that was undone: that link
// may have had the highest index.
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

// deleteEndpoint treats a missing endpoint as deleted.
func deleteEndpoint(ctx context.Context, agent *agentclient.Client, containerID, ifName string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := agent.DeleteEndpoint(ctx, attachmentID(containerID, ifName))
	switch agentclient.Status(err) {
	case notFound, badRequest: // the agent has no endpoint with an id that it rejects
		return nil
	}
	return err
}

// detach removes the link of an attachment. It disables and renames the pod's end, and moves the host end into the group of links that the agent deletes in
// bulk. With now, it deletes the link directly, because no agent runs.
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
			// the link is missing, or its group does not identify it as a link of this plugin
		case now || link.group == podlink.Group && !link.up():
			// There is no agent, or the agent gets no notification: the kernel does not announce the new group of a link that is down, such as the link of a
			// killed ADD. The direct deletion is slow, but rare.
			errs = append(errs, deleteLink(host, name))
		case link.group == podlink.Group:
			errs = append(errs, retire(host, link, ns))
		}
	}
	return errors.Join(errs...)
}

// retire disables a link without the slow deletion, unless the pod's end cannot be retired.
func retire(host *rtnl.Handle, link *hostLink, ns *podNamespace) error {
	silent := false
	if ns != nil {
		var err error
		if silent, err = retirePeer(ns, link); err != nil {
			// A pod with NET_ADMIN can create a link with the name that retirePeer needs. It cannot prevent the deletion.
			if failed := deleteLink(host, link.name); failed != nil {
				return errors.Join(err, failed)
			}
			return nil
		}
	}
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: link.name, Index: link.index}}
	// The group is set before the state: the kernel does not notify the agent of the new group of a link that is down.
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

// retirePeer sets the pod's end down, which removes its routes, and renames it to free the name for another ADD. It reports whether the pod's end was found.
func retirePeer(ns *podNamespace, link *hostLink) (found bool, err error) {
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
