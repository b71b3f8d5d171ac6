package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// TalkImage is an image that contains only the program talk, see cmd/talk. Nodes have the image after [Cluster.LoadTalk].
const TalkImage = "waggle.local/talk:1"

// LoadTalk loads TalkImage on all nodes.
func (c *Cluster) LoadTalk(ctx context.Context) error {
	var loading errgroup.Group
	for _, n := range c.Nodes {
		loading.Go(func() error { return n.LoadImage(ctx, n.Tool("kube/talk.tar")) })
	}
	if err := loading.Wait(); err != nil {
		return fmt.Errorf("%w: run \"make kube-images\"", err)
	}
	return nil
}

// Server is a pod that answers on ports 8080 and 8081. Its label app is its name.
func Server(name string, on *Node) Pod {
	return Pod{Name: name, Node: on.Name, Labels: map[string]string{"app": name}, Image: TalkImage, Command: []string{"/bin/talk", "serve", "8080", "8081"}}
}

// Requester sends one request to each target concurrently and returns a line for each answer: "SERVER PORT CLIENT". The error has a line for each failure.
type Requester func(targets ...string) ([]string, error)

// PodRequester returns a Requester that runs "talk ask" with the flags in a pod that uses TalkImage.
func (c *Cluster) PodRequester(ctx context.Context, pod string, flags ...string) Requester {
	return asking(flags, func(args ...string) (string, error) { return c.Exec(ctx, pod, append([]string{"talk"}, args...)...) })
}

// Requester returns a Requester that runs "talk ask" with the flags as a process of the node.
func (n *Node) Requester(ctx context.Context, flags ...string) Requester {
	return asking(flags, func(args ...string) (string, error) {
		return n.Run(ctx, append([]string{n.Tool("kube/talk")}, args...)...)
	})
}

// OutsideRequester returns a Requester outside all nodes that runs "talk ask" with the flags.
func (c *Cluster) OutsideRequester(ctx context.Context, flags ...string) Requester {
	return asking(flags, func(args ...string) (string, error) { return c.RunOutside(ctx, append([]string{c.talk()}, args...)...) })
}

// talk is the path of the program talk.
func (c *Cluster) talk() string { return filepath.Join(c.bin.kube, "talk") }

func asking(flags []string, talk func(args ...string) (string, error)) Requester {
	return func(targets ...string) ([]string, error) {
		out, err := talk(slices.Concat([]string{"ask"}, flags, targets)...)
		return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), err
	}
}

// WaitReplies waits until the answers of targets equal want, in the order of targets.
func (c *Cluster) WaitReplies(ctx context.Context, from Requester, want []string, targets ...string) error {
	return c.WaitFor(ctx, "answers", func() error {
		got, err := from(targets...)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("the answers of %v are %q, want %q", targets, got, want)
		}
		return err
	})
}

var noAnswer = regexp.MustCompile(`: dial tcp \S+: i/o timeout|: no answer`)

// Silent returns nil if every target times out: no connection, no reply and no rejection. A connection that is accepted without an answer is an error.
func Silent(from Requester, targets ...string) error { return Fails(noAnswer, from, targets...) }

// Fails returns nil if all targets fail with errors of the program talk that match how.
func Fails(how *regexp.Regexp, from Requester, targets ...string) error {
	got, err := from(targets...)
	if err != nil && len(how.FindAllString(err.Error(), -1)) == len(targets) {
		return nil
	}
	return errors.Join(fmt.Errorf("want %q of each target: %q", how, got), err)
}

// Targets returns target URLs of a network, see cmd/talk, for each address at one port.
func Targets(network, port string, addresses ...string) (targets []string) {
	for _, a := range addresses {
		targets = append(targets, network+"://"+net.JoinHostPort(a, port))
	}
	return targets
}

// BothTargets returns Targets for TCP and UDP.
func BothTargets(port string, addresses ...string) []string {
	return append(Targets("tcp", port, addresses...), Targets("udp", port, addresses...)...)
}
