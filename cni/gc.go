package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/statefile"
)

// gc deletes every attachment that the runtime does not list. It continues after failures and returns all errors.
func (p *plugin) gc(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	if !hasField(args.StdinData, "cni.dev/valid-attachments") {
		return failure(types.ErrInvalidNetworkConfig, errors.New("network configuration: cni.dev/valid-attachments: is missing"),
			"without the list every attachment would be deleted; the runtime must pass it, empty or not")
	}
	valid := map[types.GCAttachment]bool{}
	for _, a := range conf.ValidAttachments {
		valid[a] = true
	}
	known, unread, err := p.attachments(ctx, conf)
	if err != nil {
		return agentFailure(codeRejected, agentclient.New(conf.SocketPath), err)
	}
	errs := unread
	for _, a := range known {
		if valid[a] {
			continue
		}
		queued, err := p.forget(ctx, conf, a.ContainerID, a.IfName)
		err = errors.Join(err, detach(a.ContainerID, a.IfName, nil, queued))
		if err != nil {
			errs = append(errs, fmt.Errorf("detach %s %s: %w", a.ContainerID, a.IfName, err))
		}
	}
	if len(errs) > 0 {
		return failure(codeRejected, errors.Join(errs...), "the others are deleted; the next GC retries these")
	}
	return nil
}

// hasField reports whether the configuration has a field, possibly with the value null: that can encode an empty list.
func hasField(data []byte, name string) bool {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return false
	}
	_, ok := fields[name]
	return ok
}

// attachments returns the attachments that the agent knows, or the ones in its state files if no agent runs. unread contains errors of files whose attachment
// is unknown.
func (p *plugin) attachments(ctx context.Context, conf *netConf) (all []types.GCAttachment, unread []error, err error) {
	ids, err := agentclient.New(conf.SocketPath).Attachments(ctx)
	if errors.Is(err, agentclient.ErrUnreachable) {
		return storedAttachments(conf)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if a, ok := splitAttachment(id); ok {
			all = append(all, a)
		}
	}
	return all, nil, nil
}

// splitAttachment parses "<container id>:<interface>". Endpoints that no ADD created, such as the host's, have no such id.
func splitAttachment(id string) (types.GCAttachment, bool) {
	containerID, ifName, ok := strings.Cut(id, ":")
	return types.GCAttachment{ContainerID: containerID, IfName: ifName}, ok && containerID != "" && ifName != ""
}

// storedAttachments reads the state files of the agent's endpoints. An unreadable file does not prevent the deletion of others.
func storedAttachments(conf *netConf) (all []types.GCAttachment, unread []error, err error) {
	files, err := statefile.New(conf.endpointsDir(), "endpoint").ReadAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, f := range files {
		if errors.Is(f.Err, statefile.ErrForeign) {
			continue
		}
		var endpoint struct {
			ContainerID string `json:"containerID"`
			IfName      string `json:"ifName"`
		}
		if f.Err == nil {
			f.Err = json.Unmarshal(f.Document, &endpoint)
		}
		if f.Err == nil && endpoint.ContainerID == "" {
			f.Err = errors.New("it names no attachment")
		}
		if f.Err != nil {
			unread = append(unread, fmt.Errorf("state file %s: %w", f.Name, f.Err))
			continue
		}
		all = append(all, types.GCAttachment{ContainerID: endpoint.ContainerID, IfName: endpoint.IfName})
	}
	return all, unread, nil
}
