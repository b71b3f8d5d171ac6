package crds

func endpoint() Definition {
	column := func(name, kind, path string, priority int) Column {
		return Column{Name: name, Type: kind, JSONPath: ".status." + path, Priority: priority}
	}
	// There is no status subresource: all fields besides the metadata are status, and one write stores both.
	return define(
		Names{Kind: "CiliumEndpoint", Plural: ciliumEndpoints, Singular: "ciliumendpoint", ShortNames: []string{"cep", "ciliumep"}},
		"Namespaced", nil,
		[]Column{
			column("Security Identity", "integer", "identity.id", 0),
			column("Ingress Enforcement", "string", "policy.ingress.state", 1),
			column("Egress Enforcement", "string", "policy.egress.state", 1),
			column("Endpoint State", "string", "state", 0),
			column("IPv4", "string", "networking.addressing[0].ipv4", 0),
			column("IPv6", "string", "networking.addressing[0].ipv6", 0),
		},
		object("CiliumEndpoint describes one pod to all nodes. It has the name of the Pod.", map[string]Schema{
			"status": endpointStatus(),
		}))
}

func endpointStatus() Schema {
	return object("State of the pod.", map[string]Schema{
		"id":                   count("Id of the endpoint on its node."),
		"external-identifiers": endpointIdentifiers(),
		"identity": object("Security identity.", map[string]Schema{
			"id":     count("Number of the identity."),
			"labels": list("Labels of the identity, as source:key=value, sorted.", words("")),
		}),
		"networking": object("Addresses of the pod and of its node.", map[string]Schema{
			"addressing": list("Addresses, one entry for each interface.", addressPair("")),
			"node":       words("Address of the node."),
		}).require("addressing"),
		"encryption": encryption("Encryption key of the node."),
		"state": oneOf("State of the endpoint.", "creating", "waiting-for-identity", "not-ready", "waiting-to-regenerate", "regenerating",
			"restoring", "ready", "disconnecting", "disconnected", "invalid"),
		"named-ports": list("Named ports of the containers, sorted.", object("", map[string]Schema{
			"name":     words("Name of the port."),
			"port":     number("Number of the port.", 0, 65535),
			"protocol": words("TCP, UDP or SCTP."),
		})),
		"service-account":   words("ServiceAccount of the pod."),
		"health":            foreign("Kept unchanged."),
		"policy":            foreign("Kept unchanged."),
		"visibility-policy": words("Kept unchanged."),
		"controllers":       foreignList("Kept unchanged."),
		"log":               foreignList("Kept unchanged."),
	})
}

func endpointIdentifiers() Schema {
	return object("Names of the endpoint outside the agent.", map[string]Schema{
		"cni-attachment-id":  words("Container id and interface."),
		"container-id":       words("Id of the container with the pod's network namespace."),
		"container-name":     words("Kept unchanged."),
		"docker-endpoint-id": words("Kept unchanged."),
		"docker-network-id":  words("Kept unchanged."),
		"k8s-namespace":      words("Namespace of the pod."),
		"k8s-pod-name":       words("Name of the pod."),
		"pod-name":           words("Namespace and name of the pod with a slash between."),
	})
}
