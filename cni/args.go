package cni

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

const (
	maxArgs        = 16 << 10 // bytes of CNI_ARGS
	maxContainerID = 256      // bytes; runtimes use 64
	maxNamespace   = 63       // bytes, of a DNS label
	maxPodName     = 253      // bytes, of a DNS subdomain
	maxUID         = 128      // bytes
)

// podArgs holds the pod's properties in CNI_ARGS. All fields may be empty: not every runtime is Kubernetes'.
type podArgs struct {
	Namespace, Name, UID string
}

// owner returns the readable name of the pod in lists of addresses.
func (p podArgs) owner(containerID string) string {
	if p.Namespace == "" || p.Name == "" {
		return containerID
	}
	return p.Namespace + "/" + p.Name
}

// parseArgs parses "KEY=value;KEY=value". Unknown keys are an error unless IgnoreUnknown is true, according to the convention for CNI_ARGS. Errors contain
// the key.
func parseArgs(args string) (podArgs, error) {
	var pod podArgs
	if len(args) > maxArgs {
		return pod, fmt.Errorf("CNI_ARGS: has %d bytes, more than %d", len(args), maxArgs)
	}
	ignoreUnknown := false
	var unknown []string
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return podArgs{}, fmt.Errorf("CNI_ARGS: %.80q: is not of the form KEY=value", pair)
		}
		var err error
		switch key {
		case "IgnoreUnknown":
			ignoreUnknown, err = parseBool(value)
		case "K8S_POD_NAMESPACE":
			pod.Namespace, err = value, checkName(value, maxNamespace)
		case "K8S_POD_NAME":
			pod.Name, err = value, checkName(value, maxPodName)
		case "K8S_POD_UID":
			pod.UID, err = value, checkName(value, maxUID)
		case "K8S_POD_INFRA_CONTAINER_ID": // the same as CNI_CONTAINERID
		default:
			unknown = append(unknown, key)
		}
		if err != nil {
			return podArgs{}, fmt.Errorf("CNI_ARGS: %s: %.80q: %w", key, value, err)
		}
	}
	if len(unknown) > 0 && !ignoreUnknown {
		return podArgs{}, fmt.Errorf("CNI_ARGS: unknown key %.80q; IgnoreUnknown=1 permits it", unknown[0])
	}
	return pod, nil
}

func parseBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

// checkName accepts letters, digits, "-" and "."; an empty name means unknown.
func checkName(name string, limit int) error {
	if len(name) > limit {
		return fmt.Errorf("has %d bytes, more than %d", len(name), limit)
	}
	for _, c := range name {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			continue
		}
		return fmt.Errorf("character %q is not allowed", c)
	}
	return nil
}

// checkAttachment rejects values that are unsafe in names of links and files, or in the agent's "<container>:<interface>". skel has already checked the
// character sets of the specification.
func checkAttachment(args *skel.CmdArgs) *types.Error {
	if len(args.ContainerID) > maxContainerID {
		return failure(types.ErrInvalidEnvironmentVariables,
			fmt.Errorf("CNI_CONTAINERID: has %d bytes, more than %d", len(args.ContainerID), maxContainerID), "")
	}
	if !utf8.ValidString(args.IfName) || strings.ContainsFunc(args.IfName, func(r rune) bool { return r < 0x21 || r == 0x7f }) {
		return failure(types.ErrInvalidEnvironmentVariables,
			fmt.Errorf("CNI_IFNAME: %q: contains a character that cannot be printed", args.IfName), "")
	}
	if strings.Contains(args.IfName, "%") {
		return failure(types.ErrInvalidEnvironmentVariables,
			fmt.Errorf("CNI_IFNAME: %q: contains %%, which the kernel would replace by a number", args.IfName), "")
	}
	return nil
}

// attachmentID returns the id of an attachment's endpoint in paths of the API.
func attachmentID(containerID, ifName string) string {
	return "cni-attachment-id:" + containerID + ":" + ifName
}
