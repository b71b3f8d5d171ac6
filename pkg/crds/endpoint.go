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
		object("CiliumEndpoint describes one pod to all nodes. It is named as the Pod is.", map[string]Schema{
			"status": endpointStatus(),
		}))
}

func endpointStatus() Schema {
	return object("What is known of the pod.", map[string]Schema{
		"id":                   count("Id of the endpoint on its node."),
		"external-identifiers": endpointIdentifiers(),
		"identity": object("Security identity.", map[string]Schema{
			"id":     count("Number of the identity."),
			"labels": list("Labels that it stands for, as source:key=value, sorted.", words("")),
		}),
		"networking": object("Where the pod is reached.", map[string]Schema{
			"addressing": list("Addresses, one entry for each interface.", addressPair("")),
			"node":       words("Address of the node."),
		}).require("addressing"),
		"encryption": encryption("Key with which the node encrypts."),
		"state": oneOf("State of the endpoint.", "creating", "waiting-for-identity", "not-ready", "waiting-to-regenerate", "regenerating",
			"restoring", "ready", "disconnecting", "disconnected", "invalid"),
		"named-ports": list("Named ports of the containers, sorted.", object("", map[string]Schema{
			"name":     words("Name of the port."),
			"port":     number("Its number.", 0, 65535),
			"protocol": words("TCP, UDP or SCTP."),
		})),
		"service-account":   words("ServiceAccount of the pod."),
		"health":            foreign("Kept as it is."),
		"policy":            foreign("Kept as it is."),
		"visibility-policy": words("Kept as it is."),
		"controllers":       foreignList("Kept as it is."),
		"log":               foreignList("Kept as it is."),
	})
}

func endpointIdentifiers() Schema {
	return object("Names of the endpoint outside the agent.", map[string]Schema{
		"cni-attachment-id":  words("Container id and interface."),
		"container-id":       words("Id of the container that holds the pod's network."),
		"container-name":     words("Kept as it is."),
		"docker-endpoint-id": words("Kept as it is."),
		"docker-network-id":  words("Kept as it is."),
		"k8s-namespace":      words("Namespace of the pod."),
		"k8s-pod-name":       words("Name of the pod."),
		"pod-name":           words("Namespace and name of the pod with a slash between."),
	})
}
