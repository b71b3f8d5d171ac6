package policyexplain

import (
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/flows"
)

// maxChanges limits each list of an answer. Flows with the most packets are kept.
const maxChanges = 500

// WhatIf reports how a change of policies would change the verdicts of recorded flows. The verdict before the change is the verdict of the current
// policies, not of the policies at the time of the flow. The peer of a flow is evaluated and shown with the identity that it had when it was last seen,
// because its address may belong to another pod now.
func (v *View) WhatIf(change models.PolicyWhatIf, recorded statedb.Table[*flows.Flow]) (*models.PolicyDifference, error) {
	env := v.Environment.Read(v.txn, statedb.NewWatchSet())
	env.CIDRGroups = v.Environment.Groups(v.txn)
	given, ignored, err := manifests.Policies([]byte(change.Manifests), env)
	if err != nil {
		return nil, err
	}
	d := &models.PolicyDifference{}
	after, err := v.changed(v.withGroups(manifests.Groups([]byte(change.Manifests)), env), given, change.Delete, d)
	if err != nil {
		return nil, err
	}
	for _, p := range given {
		for _, problem := range p.Problems {
			d.Problems = append(d.Problems, models.PolicyProblem{Policy: p.Ref.String(), Path: problem.Path, Reason: problem.Reason,
				Message: problem.Message})
		}
	}
	for _, name := range ignored {
		d.Problems = append(d.Problems, models.PolicyProblem{Policy: name, Reason: "Ignored", Message: "it is no policy, and was left out"})
	}
	v.indexPods()
	then := &View{Tables: v.Tables, txn: v.txn, policies: after}
	var first time.Time
	for f := range recorded.All(v.txn) {
		q, found := v.question(packetOf(f))
		if !found || q.Peer.Identity >= identity.ClusterMin && q.Peer.Labels == nil { // the labels of the peer's identity are unknown
			d.Unknown++
			continue
		}
		if d.Flows++; first.IsZero() || f.First.Before(first) {
			first = f.First
		}
		v.weigh(f, &q, then, d)
	}
	if !first.IsZero() {
		d.Since = first.UTC().Format(time.RFC3339)
	}
	for _, list := range []*[]models.PolicyFlowChange{&d.Denied, &d.Allowed} {
		slices.SortStableFunc(*list, func(a, b models.PolicyFlowChange) int { return int(b.Count - a.Count) })
		*list = (*list)[:min(len(*list), maxChanges)]
	}
	return d, nil
}

func packetOf(f *flows.Flow) *Packet {
	return &Packet{Endpoint: f.Endpoint, Direction: f.Direction, Protocol: f.Protocol, Port: f.Port, Own: f.Own(), Other: f.Other(), Peer: f.Peer}
}

// weigh adds a flow to the difference if its verdict changes.
func (v *View) weigh(f *flows.Flow, q *policy.Question, then *View, d *models.PolicyDifference) {
	before := policy.Evaluate(v.policies, v.Options, *q).Evaluation
	after := policy.Evaluate(then.policies, v.Options, *q).Evaluation
	if before.Verdict == after.Verdict {
		return
	}
	src, dst := v.ByAddr(f.Src), v.ByAddr(f.Dst)
	peer := &src
	if f.Direction == policy.Egress {
		peer = &dst
	}
	if peer.Identity != q.Peer.Identity { // the address belongs to another pod now, or to the same pod with other labels
		*peer = Party{Addrs: peer.Addrs, Identity: q.Peer.Identity}
	}
	change := models.PolicyFlowChange{
		From: v.model(&src, f.Src), To: v.model(&dst, f.Dst), Direction: models.PolicyFlowChangeDirection(f.Direction.String()),
		Port:  fmt.Sprintf("%d/%s", f.Port, policy.ProtocolName(f.Protocol)),
		Count: int64(f.Count), Last: f.Last.UTC().Format(time.RFC3339), Text: then.because(&after, q),
	}
	if after.Verdict == policy.Deny {
		d.Denied = append(d.Denied, change)
	} else {
		d.Allowed = append(d.Allowed, change)
	}
}

// withGroups returns the current policies with the given groups in place of existing groups of the same names.
func (v *View) withGroups(given []*cilium.CIDRGroup, env policy.Environment) []*policy.Policy {
	var moved []*cilium.CIDRGroup // previous and new versions
	for _, g := range given {
		if old := env.CIDRGroups[g.Name]; old != nil {
			moved = append(moved, old)
		}
		env.CIDRGroups[g.Name] = g
		moved = append(moved, g)
	}
	after := slices.Clone(v.policies)
	for i, p := range after {
		if !slices.ContainsFunc(moved, p.RefersTo) {
			continue
		}
		key := (&cilium.Policy{Namespace: p.Ref.Namespace, Name: p.Ref.Name}).Key()
		if o, _, found := v.CiliumPolicies.Get(v.txn, cilium.PolicyByName(key)); found {
			after[i] = policy.FromCilium(o, env)
		}
	}
	return after
}

// changed removes the named policies from a list, and adds or replaces the given ones.
func (v *View) changed(after, given []*policy.Policy, remove []string, d *models.PolicyDifference) ([]*policy.Policy, error) {
	for _, name := range remove {
		n := len(after)
		after = slices.DeleteFunc(after, func(p *policy.Policy) bool {
			is := p.Ref.IsCalled(name)
			if is {
				d.Deleted = append(d.Deleted, p.Ref.String())
			}
			return is
		})
		if len(after) == n {
			return nil, fmt.Errorf("delete %.300q: there is no such policy on this node; see waggle policy list", name)
		}
	}
	for _, p := range given {
		same := func(o *policy.Policy) bool { return o.Ref == p.Ref }
		if at := slices.IndexFunc(after, same); at >= 0 {
			after[at] = p
			d.Replaced = append(d.Replaced, p.Ref.String())
			continue
		}
		after = append(after, p)
		d.Added = append(d.Added, p.Ref.String())
	}
	return after, nil
}
