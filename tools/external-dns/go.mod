module ip-address-controller/tools/external-dns

go 1.26.0

require sigs.k8s.io/external-dns v0.20.0
